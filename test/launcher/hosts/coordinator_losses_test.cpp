#include "test/launcher/hosts/forming_job.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;

// A coordinator that loses hosts.

TEST_CASE("too few hosts after a loss: the lost one is named") {
  FormingJob job;
  job.terms.least_hosts = 3;
  job.timeouts.join = 10s;
  job.run();
  CHECK(job.close(1) == "0 broken 0: b vanished, 2 broken 0: b vanished");
  job.join(kOwn);
  CHECK(job.join(2) == "2 noted");
  CHECK_THAT(job.pass(10s), Contains("2 closed 1"));
  const JobClosed closed = job.get().closed().value();
  CHECK_THAT(closed.text,
             Contains("expected at least 3 hosts, but got 2 (a, c) in 10 s; "
                      "host b has vanished (its connection has ended: reset); "
                      "start ddprun"));
}

TEST_CASE("hosts that vanish and come again cost no restart") {
  FormingJob job;
  job.run();
  job.close(2);
  job.join(kOwn);
  job.join(1);
  CHECK(job.come(3) == "0 formed 1, 1 formed 1, 3 formed 1");
  job.work(1, 1);
  CHECK(job.fail(1, 1) == "0 noted, 1 broken 1: b failed, 3 noted");
}

TEST_CASE(
    "a smaller world waits for another host, one of equal size does not") {
  FormingJob job;
  job.timeouts.last_call = 10s;
  job.run();
  job.close(2);
  job.join(kOwn);
  CHECK(job.join(1) == "1 noted");
  SECTION("in vain") {
    CHECK(job.pass(10s) == "0 formed 1, 1 formed 1");
  }
  SECTION("which comes") {
    CHECK(job.come(3) == "0 formed 1, 1 formed 1, 3 formed 1");
  }
}

TEST_CASE("a fixed number of hosts without restarts ends with the first loss") {
  FormingJob job;
  job.terms.least_hosts = 3;
  job.terms.max_restarts = 0;
  job.run();
  CHECK(job.cut(1).empty());
  job.now += job.timeouts.keep_alive;
  const auto actions = job.get().on_time(job.now);
  REQUIRE(said(actions) == "0 noted, 2 closed 1");
  const auto closed =
      std::get<JobClosed>(std::get<Coordinator::Send>(actions.at(1)).message);
  CHECK_THAT(closed.text, Contains("host b has vanished") && Contains("3"));
}

TEST_CASE("a host that is lost between two worlds is named, if it is missed") {
  FormingJob job;
  job.terms.least_hosts = 3;
  job.timeouts.join = 10s;
  job.run();
  job.fail(1, 0);
  job.join(kOwn);
  job.join(1);
  CHECK(job.close(2).empty());
  CHECK_THAT(job.pass(10s), Contains("1 closed 1"));
  const JobClosed closed = job.get().closed().value();
  CHECK_THAT(closed.text, Contains("host c has vanished"));
}

TEST_CASE("a fixed number of hosts goes on when a spare is there") {
  FormingJob job;
  job.terms.least_hosts = 3;
  job.terms.max_restarts = 0;
  job.run();
  CHECK(job.come(3) == "3 noted");
  CHECK(job.close(1) ==
        "0 broken 0: b vanished, 2 broken 0: b vanished, 3 noted");
}

TEST_CASE("a fixed number of hosts with restarts waits for the lost one") {
  FormingJob job;
  job.terms.least_hosts = 3;
  job.run();
  CHECK(job.close(2) == "0 broken 0: c vanished, 1 broken 0: c vanished");
  CHECK(job.join(kOwn) == "0 noted");
  CHECK(job.join(1) == "1 noted");
  CHECK(job.come(3) == "0 formed 1, 1 formed 1, 3 formed 1");
  for (const Coordinator::Connection from : {kOwn, 1ul, 3ul}) {
    job.work(from, 1);
  }
  for (const Coordinator::Connection from : {1ul, 3ul}) {
    CHECK(job.succeed(from, 1) == std::to_string(from) + " noted");
  }
  CHECK(job.succeed(kOwn, 1) == "0 noted, 1 closed 0, 3 closed 0");
}

TEST_CASE("a range of hosts waits for another one, also without restarts") {
  FormingJob job;
  job.terms.max_restarts = 0;
  job.run(2);
  CHECK(job.close(1) == "0 broken 0: b vanished");
  CHECK(job.join(kOwn) == "0 noted");
  CHECK(job.come(4) == "0 formed 1, 4 formed 1");
}

TEST_CASE("who failed in one world hears of the loss that breaks the next") {
  FormingJob job;
  job.run();
  job.fail(1, 0);
  for (const Coordinator::Connection from : {kOwn, 1ul, 2ul}) {
    job.join(from);
  }
  for (const Coordinator::Connection from : {kOwn, 1ul, 2ul}) {
    job.work(from, 1);
  }
  CHECK(job.close(2) == "0 broken 1: c vanished, 1 broken 1: c vanished");
}

TEST_CASE("a success in one world keeps nobody out of the next") {
  FormingJob job;
  job.run(2);
  job.succeed(1, 0);
  job.fail(kOwn, 0);
  job.join(1);
  CHECK(job.join(kOwn) == "0 formed 1, 1 formed 1");
  job.work(kOwn, 1);
  job.work(1, 1);
  CHECK(job.come(2) == "0 broken 1: c joined, 1 broken 1: c joined, 2 noted");
}

TEST_CASE("a host whose connection is cut keeps its place if it comes back") {
  FormingJob job;
  job.terms.least_hosts = 3;
  job.terms.max_restarts = 0;
  job.run();
  const auto comes_back = [&job](Coordinator::Connection at) {
    job.states[at] = job.states[1];
    ++job.states[at].number;
    const auto greeted = job.say(at, job.hello(1));
    return greeted + ", " + job.say(at, job.states[at]);
  };
  SECTION("at once") {
    CHECK(job.cut(1).empty());
    CHECK(job.pass(4999ms).empty());
    CHECK(comes_back(9) == "9 noted, 9 noted");
    CHECK(job.pass(5s).empty());
    CHECK(job.succeed(9, 0) == "9 noted");
  }
  SECTION("again and again") {
    for (Coordinator::Connection at = 1; at != 9;) {
      CHECK(job.cut(at).empty());
      CHECK(job.pass(1s).empty());
      at = at == 1 ? 5 : at + 1;
      CHECK(comes_back(at) ==
            std::to_string(at) + " noted, " + std::to_string(at) + " noted");
      job.work(2, 0);
    }
  }
  SECTION("and is told what it has missed") {
    CHECK(job.cut(1).empty());
    CHECK(job.succeed(kOwn, 0) == "0 noted");
    CHECK(job.succeed(2, 0) == "2 noted");
    job.states[1].outcome = HostSucceeded{};
    CHECK(comes_back(9) == "9 noted, 0 noted, 2 closed 0, 9 closed 0");
  }
}

TEST_CASE("how a host was lost is told to the others") {
  FormingJob job;
  job.run(2);
  const bool is_cut = GENERATE(true, false);
  if (is_cut) {
    job.cut(1);
  }
  CHECK(job.pass(is_cut ? 4999ms : 14999ms).empty());
  job.now += 1ms;
  const auto actions = job.get().on_time(job.now);
  const auto& send = std::get<Coordinator::Send>(actions.back());
  CHECK(std::get<Broken>(send.message).why.how ==
        (is_cut ? "its connection has ended: reset" : "silent for 15 s"));
}

TEST_CASE("no world forms with a host whose connection has ended") {
  FormingJob job;
  job.timeouts.last_call = 1s;
  job.come(kOwn);
  job.come(1);
  CHECK(job.cut(1).empty());
  CHECK(job.come(2) == "2 noted");
  SECTION("it comes back") {
    CHECK(job.say(9, job.hello(1)) == "0 formed 0, 2 formed 0, 9 formed 0");
  }
  SECTION("it does not") {
    CHECK(job.pass(5s) == "0 formed 0, 2 formed 0");
  }
}
