#include "launcher/hosts/coordinator/admission.h"
#include "test/launcher/hosts/forming_job.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;

namespace {

const std::string kAllFormed = "0 formed 0, 1 formed 0, 2 formed 0";

}  // namespace

TEST_CASE("the first world waits for all, or for the last call") {
  FormingJob job;
  job.timeouts.last_call = 20s;
  CHECK(job.come(kOwn) == "0 noted");
  CHECK(job.pass(60s).empty());
  job.work(kOwn, -1);
  job.join(kOwn);
  SECTION("all come") {
    job.come(1);
    CHECK(job.come(2) == kAllFormed);
  }
  SECTION("enough come") {
    CHECK(job.come(1) == "1 noted");
    CHECK(job.pass(14s).empty());
    CHECK(job.join(1) == "1 noted");
    CHECK(job.pass(7s) == "0 formed 0, 1 formed 0");
  }
}

TEST_CASE("too few hosts are waited for as long as join_timeout") {
  FormingJob job;
  job.timeouts.join = 50s;
  job.come(kOwn);
  CHECK(job.pass(49s).empty());
  CHECK(job.pass(2s) == "0 closed 1");
  const JobClosed closed = job.get().closed().value();
  CHECK(closed.text ==
        "expected at least 2 hosts, but got 1 (a) in 50 s; start ddprun on the "
        "others, or give --rdzv-conf join_timeout=SECONDS");
}

TEST_CASE("a join_timeout below a second is told as it is") {
  FormingJob job;
  job.timeouts.join = 500ms;
  job.come(kOwn);
  CHECK(job.pass(1s) == "0 closed 1");
  const JobClosed closed = job.get().closed().value();
  CHECK_THAT(closed.text, Catch::Contains("but got 1 (a) in 500 ms; start"));
}

TEST_CASE("a world: ranks by hosts, roles, and rank 0's store") {
  FormingJob job;
  job.come(kOwn);
  Hello other = job.hello(1);
  other.role = "evaluator";
  job.say(1, other);
  job.join(1);
  job.say(2, job.hello(2));
  HostState& state = job.next_state(2);
  state.joins = true;
  const auto actions = job.get().on_message(2, state, job.now);
  REQUIRE(actions.size() == 3);
  const auto world_at = [&](size_t index) {
    const auto& send = std::get<Coordinator::Send>(actions.at(index));
    return std::get<WorldFormed>(send.message).world;
  };
  for (const size_t index : {0u, 1u, 2u}) {
    CHECK(world_at(index).host_rank == static_cast<int>(index));
    CHECK(world_at(index).host_count == 3);
    CHECK(world_at(index).world_size == 1 + 2 + 3);
    CHECK(world_at(index).restarts == 0);
    CHECK(world_at(index).master.host == "host-a");
    CHECK(world_at(index).master.port == 1000);
  }
  CHECK(world_at(0).first_rank == 0);
  CHECK(world_at(1).first_rank == 1);
  CHECK(world_at(2).first_rank == 3);
  CHECK(world_at(0).role->size == 4);
  CHECK(world_at(1).role->size == 2);
  CHECK(world_at(1).role->first_rank == 0);
  CHECK(world_at(2).role->first_rank == 1);
}

TEST_CASE("a failure costs one restart, whoever else fails of it") {
  FormingJob job;
  job.run();
  CHECK(job.fail(1, 0) ==
        "0 broken 0: b failed, 1 broken 0: b failed, 2 broken 0: b failed");
  CHECK(job.fail(2, 0) == "2 broken 0: b failed");
  CHECK(job.join(2) == "2 noted");
  CHECK(job.join(1) == "1 noted");
  CHECK(job.join(kOwn) == "0 formed 1, 1 formed 1, 2 formed 1");
  for (const Coordinator::Connection from : {kOwn, 1ul, 2ul}) {
    job.work(from, 1);
  }
  // The only restart is used up.
  CHECK(job.fail(2, 1, {7, {.code = 9}}) == "0 noted, 1 closed 9, 2 closed 9");
  CHECK(job.close(1).empty());
  CHECK(job.close(2) == "0 closed 9");
  CHECK(job.get().is_done());
}

TEST_CASE("a host that comes late breaks the world, unless it is full") {
  FormingJob job;
  job.run(2);
  CHECK(job.come(2) == "0 broken 0: c joined, 1 broken 0: c joined, 2 noted");
  job.join(kOwn);
  CHECK(job.join(1) == "0 formed 1, 1 formed 1, 2 formed 1");
  for (const Coordinator::Connection from : {kOwn, 1ul, 2ul}) {
    job.work(from, 1);
  }
  CHECK(job.come(3) == "3 noted");  // spare
  CHECK(job.close(1) ==
        "0 broken 1: b vanished, 2 broken 1: b vanished, 3 noted");
  job.join(kOwn);
  CHECK(job.join(2) == "0 formed 2, 2 formed 2, 3 formed 2");
}

TEST_CASE("hosts that come or go do not undo another host's success") {
  FormingJob job;
  job.run(2);
  CHECK(job.succeed(1, 0) == "1 noted");
  CHECK(job.come(2) == "2 noted");
  SECTION("it stays") {
    CHECK(job.succeed(kOwn, 0) == "0 noted, 1 closed 0, 2 closed 0");
  }
  SECTION("it leaves") {
    CHECK(job.say(1, Goodbye{}) == "drop 1");
    CHECK(job.join(2) == "2 noted");
    CHECK(job.succeed(kOwn, 0) == "0 noted, 2 closed 0");
  }
  SECTION("the other fails") {
    CHECK(job.fail(kOwn, 0) ==
          "0 broken 0: a failed, 1 broken 0: a failed, 2 noted");
  }
}

TEST_CASE("a host on a new connection is the same host") {
  FormingJob job;
  job.run();
  CHECK(job.say(9, job.hello(1)) == "drop 1, 9 noted");
  CHECK(job.close(1).empty());
  job.states[9] = job.states[1];
  CHECK(job.work(9, 0) == "9 noted");
  CHECK(job.fail(9, 0) ==
        "0 broken 0: b failed, 2 broken 0: b failed, 9 broken 0: b failed");
}

TEST_CASE("what comes twice or too late changes nothing") {
  FormingJob job;
  job.run();
  HostState old = job.states[1];
  CHECK(job.say(1, old) == "1 noted");
  old.number = 1;
  old.joins = true;
  CHECK(job.say(1, old) == "1 noted");
  CHECK(job.succeed(1, 0) == "1 noted");
}

TEST_CASE("static hosts have their ranks, whoever comes first or comes again") {
  FormingJob job;
  job.terms.ranks_are_fixed = true;
  job.terms.least_hosts = 3;
  const auto ranks = [&](const Coordinator::Actions& actions) {
    std::map<Coordinator::Connection, int> by_connection;
    for (const auto& action : actions) {
      const auto& send = std::get<Coordinator::Send>(action);
      const World world = std::get<WorldFormed>(send.message).world;
      CHECK(world.master.host == "host-a");
      by_connection[send.to] = world.host_rank;
    }
    return by_connection;
  };
  using Ranks = std::map<Coordinator::Connection, int>;
  job.come(2);
  job.come(1);
  job.say(kOwn, job.hello(kOwn));
  HostState own;
  own.number = 1;
  own.joins = true;
  own.store = {"host-a", 1000};
  CHECK(ranks(job.get().on_message(kOwn, own, job.now)) ==
        Ranks{{0, 0}, {1, 1}, {2, 2}});
  job.states[kOwn] = own;
  for (const Coordinator::Connection from : {kOwn, 1ul, 2ul}) {
    job.work(from, 0);
  }
  CHECK(job.close(1) == "0 broken 0: b vanished, 2 broken 0: b vanished");
  job.join(2);
  job.join(kOwn);
  Hello again = job.hello(5);
  again.wanted_rank = 1;
  CHECK(job.say(5, again) == "5 noted");
  HostState& state = job.next_state(5);
  state.joins = true;
  CHECK(ranks(job.get().on_message(5, state, job.now)) ==
        Ranks{{0, 0}, {5, 1}, {2, 2}});
}

TEST_CASE("a rank that two static hosts want is refused to the second") {
  FormingJob job;
  job.terms.ranks_are_fixed = true;
  job.terms.least_hosts = 3;
  job.come(kOwn);
  job.come(1);
  Hello second = job.hello(2);
  second.wanted_rank = 1;
  const auto actions = job.get().on_message(4, second, job.now);
  REQUIRE(said(actions) == "4 refused, drop 4");
  CHECK(std::get<RendezvousLost>(
            std::get<Coordinator::Send>(actions.at(0)).message)
            .text ==
        "expected --node-rank 1 of one host, but got it from b (host-b) and c; "
        "give each host its own");
  // The first host may have lost its connection.
  CHECK(job.say(7, job.hello(1)) == "drop 1, 7 noted");
  second.wanted_rank = 0;
  CHECK(job.say(8, second) == "8 refused, drop 8");
}

TEST_CASE(
    "a static host that is started again has its rank when it is missed") {
  FormingJob job;
  job.terms.ranks_are_fixed = true;
  job.terms.least_hosts = 3;
  job.run();
  Hello again = job.hello(1);
  again.id = "again";
  job.cut(1);
  std::string told;
  for (Coordinator::Connection at = 5; told.empty() && at < 200; ++at) {
    const std::string said = job.say(at, again);
    const std::string place = std::to_string(at);
    told = said == "drop " + place ? "" : said;
    CHECK((told.empty() || told == place + " noted"));
    job.pass(250ms);
    job.work(2, 0);
  }
  CHECK(!told.empty());
}

TEST_CASE("generations go on above all that a host has seen") {
  FormingJob job;
  job.terms.most_hosts = 2;
  job.come(kOwn);
  job.say(1, job.hello(1));
  job.states[1].generation = 41;
  job.states[1].host_rank = 0;
  CHECK(job.join(1) == "0 formed 42, 1 formed 42");
}

TEST_CASE("whom a job does not know is refused with what to do") {
  Admission admission;
  admission.terms.run_id = "job7";
  admission.terms.most_hosts = 4;
  admission.terms.max_restarts = 2;
  admission.token = "secret";
  admission.keep_alive = 2s;
  Hello hello;
  hello.terms = admission.terms;
  hello.token = "secret";
  hello.keep_alive = 2s;
  CHECK(refusal_of(hello, admission).empty());
  HostTable others;
  others[1].hello.id = "other";
  others[1].hello.host = "b";
  others[1].hello.worker_count = kLargestCount - 8;
  others[1].hello.wanted_rank = 2;
  const auto refusal = [&](const auto& change) {
    Hello changed = hello;
    change(changed);
    return refusal_of(changed, admission, others);
  };
  CHECK_THAT(refusal([](Hello& other) { other.version = 7; }),
             Contains("expected messages of version 5, but got version 7"));
  CHECK_THAT(
      refusal([](Hello& other) { other.keep_alive = 60s; }),
      Contains("keep_alive_interval of 2000 ms") && Contains("got 60000 ms"));
  CHECK(refusal([](Hello& other) { other.worker_count = 8; }).empty());
  CHECK_THAT(refusal([](Hello& other) { other.worker_count = 9; }),
             Contains("expected at most 16777216 workers") &&
                 Contains("got 16777217"));
  for (const std::string token : {"", "secreT", "secret2", "s"}) {
    CHECK_THAT(refusal([&](Hello& other) { other.token = token; }),
               Contains("DDPRUN_TOKEN") && !Contains("secret"));
  }
  CHECK_THAT(refusal([](Hello& other) { other.terms.run_id = "b"; }),
             Contains("expected job job7") && Contains("got job b") &&
                 Contains("--rdzv-id"));
  CHECK_THAT(refusal([](Hello& other) { other.terms.least_hosts = 4; }),
             Contains("expected --nnodes 1:4") && Contains("got 4"));
  CHECK_THAT(refusal([](Hello& other) { other.terms.max_restarts = 0; }),
             Contains("expected --max-restarts 2") && Contains("got 0"));
  CHECK_THAT(refusal([](Hello& other) { other.terms.ranks_are_fixed = true; }),
             Contains("expected --rdzv-backend=c10d"));
  CHECK(refusal([](Hello& other) { other.wanted_rank = 2; }).empty());
  hello.terms.ranks_are_fixed = admission.terms.ranks_are_fixed = true;
  hello.host = "c";
  hello.wanted_rank = 3;
  CHECK(refusal([](Hello&) {}).empty());
  CHECK_THAT(refusal([](Hello& other) { other.wanted_rank = 4; }),
             Contains("expected --node-rank below --nnodes (4), but got 4"));
  CHECK_THAT(refusal([](Hello& other) { other.wanted_rank.reset(); }),
             Contains("but got none"));
  CHECK_THAT(refusal([](Hello& other) { other.terms.ranks_are_fixed = false; }),
             Contains("expected --rdzv-backend=static"));
}

TEST_CASE("a closed job drops the next job's hosts and answers its own") {
  FormingJob job;
  job.run(2);
  job.succeed(kOwn, 0);
  CHECK(job.succeed(1, 0) == "0 noted, 1 closed 0");
  const bool is_done = GENERATE(false, true);
  if (is_done) {
    job.close(1);
    CHECK(job.get().is_done());
  }
  CHECK(job.say(2, job.hello(2)) == "drop 2");
  CHECK(job.say(3, job.hello(1)) ==
        (is_done ? "3 closed 0" : "drop 1, 3 closed 0"));
}

TEST_CASE("a refused host is told, and dropped") {
  FormingJob job;
  job.token = "secret";
  job.come(kOwn);
  Hello hello = job.hello(1);
  hello.token = "guess";
  CHECK(job.say(1, hello) == "1 refused, drop 1");
  CHECK(!job.get().is_known(1));
  hello = job.hello(1);
  hello.worker_count = kLargestCount;
  CHECK(job.say(1, hello) == "1 refused, drop 1");
}
