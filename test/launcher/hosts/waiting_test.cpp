#include "test/launcher/hosts/forming_job.h"

using Catch::Contains;
using Catch::EndsWith;
using namespace launcher;
using namespace launcher::test;

// Messages of a coordinator to waiting hosts.

namespace {

/// Returns the hosts that `from` waits for, from the answer to its next
/// message.
std::string wait_of(FormingJob& job, Coordinator::Connection from) {
  for (const auto& action :
       job.get().on_message(from, HostState(job.next_state(from)), job.now)) {
    const auto* send = std::get_if<Coordinator::Send>(&action);
    if (send != nullptr && send->to == from) {
      const auto* noted = std::get_if<Noted>(&send->message);
      return noted == nullptr ? said(send->message) : noted->waits_for;
    }
  }
  return "no answer";
}

}  // namespace

TEST_CASE("hosts that wait hear who is there, and until when") {
  FormingJob job;
  job.come(kOwn);
  CHECK(wait_of(job, kOwn) ==
        "1 of 3 hosts is here (a); gives up in 600 s (--rdzv-conf "
        "join_timeout)");
  job.pass(2500ms);
  job.come(1);
  job.pass(10s);
  for (const Coordinator::Connection from : {kOwn, 1ul}) {
    CHECK(wait_of(job, from) ==
          "2 of 3 hosts are here (a, b); starts without others in 20 s "
          "(--rdzv-conf last_call_timeout)");
  }
}

TEST_CASE("hosts hear why others do not come until all have come") {
  FormingJob job;
  job.terms.least_hosts = 3;
  const std::string hint = "; no other machine reaches this loopback address";
  job.advice = hint;
  job.come(kOwn);
  CHECK_THAT(wait_of(job, kOwn), EndsWith("join_timeout)" + hint));
  const bool gives_up = GENERATE(true, false);
  if (gives_up) {
    job.pass(600s);
    REQUIRE(job.get().closed());
    CHECK_THAT(job.get().closed()->text, EndsWith("=SECONDS" + hint));
    return;
  }
  job.come(1);
  job.come(2);
  for (Coordinator::Connection from = kOwn; from < 3; ++from) {
    job.work(from, 0);
  }
  job.close(1);
  job.join(kOwn);
  CHECK_THAT(wait_of(job, kOwn), Contains("are here") || Contains("is here"));
  CHECK_THAT(wait_of(job, kOwn), !Contains("loopback"));
}

TEST_CASE("hosts whose workers are still to end are named") {
  FormingJob job;
  job.terms.least_hosts = 3;
  job.timeouts.join = 100s;
  job.run();
  job.say(1, Goodbye{});
  CHECK(wait_of(job, 2) == "broken 0: b left");
  job.join(kOwn);
  CHECK(wait_of(job, kOwn) ==
        "1 of 3 hosts is here (a); the workers of c are still to end; gives up "
        "in 100 s (--rdzv-conf join_timeout)");
  job.join(2);
  CHECK(wait_of(job, kOwn) ==
        "2 of 3 hosts are here (a, c); gives up in 100 s (--rdzv-conf "
        "join_timeout)");
}

TEST_CASE("ranks that no host has yet are named") {
  FormingJob job;
  job.terms = {.run_id = "job",
               .least_hosts = 4,
               .most_hosts = 4,
               .ranks_are_fixed = true};
  job.come(kOwn);
  job.come(2);
  CHECK(wait_of(job, 2) ==
        "2 of 4 hosts are here (a, c); no host yet for node ranks 1, 3; "
        "gives up in 600 s (--rdzv-conf join_timeout)");
}

TEST_CASE("a spare and a host that has succeeded know what they wait for") {
  FormingJob job;
  job.run();
  CHECK(wait_of(job, kOwn).empty());
  job.come(3);
  CHECK(wait_of(job, 3) ==
        "as many hosts are at work as --nnodes allows; it starts when one of "
        "them is lost");
  job.succeed(1, 0);
  CHECK(wait_of(job, 1) ==
        "its workers have succeeded; those of a, c have not yet");
  CHECK(wait_of(job, 3) ==
        "the workers of another host have succeeded, so the job takes in no "
        "more hosts; it waits for its end");
}

TEST_CASE("of many hosts the first are named") {
  FormingJob job;
  job.terms.most_hosts = 20;
  for (Coordinator::Connection from = kOwn; from < 12; ++from) {
    job.come(from);
  }
  CHECK_THAT(wait_of(job, kOwn),
             Contains("12 of 20 hosts are here (a, b, c, d, e, f, g, h "
                      "and 4 more); starts"));
}
