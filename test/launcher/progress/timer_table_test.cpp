#include "launcher/workers/progress/timer_table.h"

#include <csignal>

#include "test/support/catch.h"

using namespace launcher;
using namespace std::chrono_literals;
using Time = TimerTable::Time;

namespace {

constexpr double kWall = 1'700'000'000;

TimerRequest timer(pid_t pid,
                   const std::string& scope,
                   double seconds,
                   int signal = SIGKILL) {
  return {pid, scope, kWall + seconds, signal};
}

TimerRequest end_of(pid_t pid, const std::string& scope) {
  return {pid, scope, -1, 0};
}

}  // namespace

TEST_CASE("a timer request as torch writes it") {
  const auto request =
      parse_timer_request(R"({"version": 1, "pid": 12, "scope_id": "step", )"
                          R"("expiration_time": 1700000000.25, "signal": 9})");
  REQUIRE(request);
  CHECK(request->pid == 12);
  CHECK(request->scope == "step");
  CHECK(request->expiration == 1700000000.25);
  CHECK(request->signal == SIGKILL);
  const auto end = parse_timer_request(
      R"({"version":1,"pid":12,"scope_id":"","expiration_time":-1,"signal":0})");
  REQUIRE(end);
  CHECK(end->expiration == -1);
  const auto mute = parse_timer_request(
      R"({"pid":12,"scope_id":"a","expiration_time":1,"signal":-5})");
  REQUIRE(mute);
  CHECK(mute->signal == 0);
}

TEST_CASE("what is no timer request is none") {
  const char* line = GENERATE(
      "",
      "{",
      "[]",
      "7",
      "{}",
      R"({"pid":0,"scope_id":"a","expiration_time":1,"signal":9})",
      R"({"pid":-4,"scope_id":"a","expiration_time":1,"signal":9})",
      R"({"pid":99999999999,"scope_id":"a","expiration_time":1,"signal":9})",
      R"({"pid":"1","scope_id":"a","expiration_time":1,"signal":9})",
      R"({"pid":1,"scope_id":2,"expiration_time":1,"signal":9})",
      R"({"pid":1,"scope_id":"a","expiration_time":"1","signal":9})",
      R"({"pid":1,"scope_id":"a","expiration_time":1,"signal":900})",
      R"({"pid":1,"scope_id":"a","expiration_time":1})");
  CHECK(!parse_timer_request(line));
}

TEST_CASE("timers expire, end and are set anew") {
  TimerTable timers;
  const Time start{};
  CHECK(!timers.next());
  timers.apply(timer(1, "a", 10), start, kWall);
  timers.apply(timer(2, "a", 20), start, kWall);
  timers.apply(timer(3, "a", 5), start, kWall);
  CHECK(timers.next() == start + 5s);
  timers.apply(end_of(3, "a"), start, kWall);
  timers.apply(end_of(3, "never set"), start, kWall);
  CHECK(timers.next() == start + 10s);
  timers.apply(timer(1, "a", 15), start + 1s, kWall);  // wall clock set back
  CHECK(timers.remove_expired(start + 15s).empty());
  const auto expired = timers.remove_expired(start + 16s);
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].pid == 1);
  CHECK(expired[0].scope == "a");
  CHECK(expired[0].signal == SIGKILL);
  CHECK(expired[0].after == 15s);
  CHECK(timers.next() == start + 20s);
}

TEST_CASE("of a process with several the first one with a signal counts") {
  TimerTable timers;
  timers.apply(timer(1, "0 mute", 1, 0), {}, kWall);
  timers.apply(timer(1, "1 late", 3, SIGTERM), {}, kWall);
  timers.apply(timer(1, "2 early", 2, SIGABRT), {}, kWall);
  timers.apply(timer(1, "3 mute", 1, 0), {}, kWall);
  timers.apply(timer(1, "future", 100), {}, kWall);
  const auto expired = timers.remove_expired(Time{} + 5s);
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].scope == "2 early");
  CHECK(expired[0].signal == SIGABRT);
  CHECK(!timers.next());
}

TEST_CASE("timers in the past and beyond all time") {
  TimerTable timers;
  timers.apply(timer(1, "past", -50), {}, kWall);
  timers.apply(timer(2, "never", 1e300), {}, kWall);
  CHECK(timers.remove_expired({}).size() == 1);
  CHECK(timers.remove_expired(Time{} + 24h * 365).empty());
}

TEST_CASE("there is an end to how many timers are kept") {
  TimerTable timers;
  for (int scope = 0; scope < 100'000; ++scope) {
    timers.apply(timer(1, std::to_string(scope), 10), {}, kWall);
  }
  timers.apply(timer(2, "one more", 1), {}, kWall);
  CHECK(timers.next() == Time{} + 10s);
  timers.apply(timer(1, "7", 5), {}, kWall);
  CHECK(timers.next() == Time{} + 5s);
}
