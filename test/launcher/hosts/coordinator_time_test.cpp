#include "test/launcher/hosts/forming_job.h"

using namespace launcher;
using namespace launcher::test;

// A coordinator's actions when time passes, and its deadlines.

TEST_CASE("a silent host has vanished") {
  FormingJob job;
  job.run();
  for (int beat = 0; beat < 3; ++beat) {
    CHECK(job.pass(4900ms).empty());
    job.work(2, 0);
  }
  CHECK(job.get().next_deadline() == job.now + 300ms);
  CHECK(job.pass(300ms) ==
        "drop 1, 0 broken 0: b vanished, 2 broken 0: b vanished");
}

TEST_CASE("a host is heard of by its new connection, too") {
  FormingJob job;
  job.run();
  CHECK(job.pass(14s).empty());
  CHECK(job.say(9, job.hello(1)) == "drop 1, 9 noted");
  CHECK(job.pass(1s) ==
        "drop 2, 0 broken 0: c vanished, 9 broken 0: c vanished");
}

TEST_CASE("the last call and the time to join are kept") {
  FormingJob job;
  job.timeouts = {.join = 50s, .last_call = 20s, .keep_alive = 100s};
  job.come(kOwn);
  CHECK(job.get().next_deadline() == job.now + 50s);
  SECTION("too few") {
    CHECK(job.pass(49s).empty());
    CHECK(job.pass(1s) == "0 closed 1");
  }
  SECTION("enough") {
    CHECK(job.pass(10s).empty());
    job.come(1);
    CHECK(job.get().next_deadline() == job.now + 20s);
    CHECK(job.pass(19s).empty());
    CHECK(job.pass(1s) == "0 formed 0, 1 formed 0");
  }
  SECTION("enough, and then no more") {
    job.come(1);
    CHECK(job.pass(15s).empty());
    job.say(1, Goodbye{});
    CHECK(job.pass(10s).empty());
    job.come(2);
    CHECK(job.pass(19s).empty());
    CHECK(job.pass(1s) == "0 formed 0, 2 formed 0");
  }
}

TEST_CASE("who has not joined in time is not waited for") {
  FormingJob job;
  job.timeouts = {.join = 50s, .last_call = 0s, .keep_alive = 100s};
  job.come(kOwn);
  job.say(2, job.hello(2));
  CHECK(job.come(1) == "1 noted");
  CHECK(job.pass(49s).empty());
  CHECK(job.pass(1s) == "0 formed 0, 1 formed 0, 2 noted");
}

TEST_CASE("hosts that do not hang up are not waited for when all is over") {
  FormingJob job;
  job.timeouts.keep_alive = 100s;
  job.run();
  for (const Coordinator::Connection from : {kOwn, 1ul, 2ul}) {
    job.succeed(from, 0);
  }
  CHECK(job.get().next_deadline() == job.now + 5s);
  CHECK(job.pass(4s).empty());
  CHECK(job.pass(1s) == "0 closed 0, 1 closed 0, 2 closed 0");
  CHECK(job.get().is_done());
}

TEST_CASE(
    "a failure that its host says is final closes the job with its code") {
  FormingJob job;
  job.run(2);
  CHECK(job.fail(1, 0, {7, {.code = 93}, true}) == "0 noted, 1 closed 93");
}

TEST_CASE("a start that failed closes the job with its reason") {
  FormingJob job;
  job.terms.max_restarts = 5;
  job.run(2);
  CHECK(job.fail(1, 0, {7, {.code = 127}, true, "no such program"}) ==
        "0 noted, 1 closed 127");
  CHECK(job.get().closed().value().text ==
        "rank 7 on host b could not start: no such program");
}
