#include "launcher/base/timers.h"

#include "launcher/base/event_loop.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"

using namespace launcher;
using namespace std::chrono_literals;
using Names = std::vector<std::string>;

namespace {

constexpr Timers::Time kStart{100s};

/// Timers that record their names when they are due.
struct NotingTimers {
  Timers timers;
  Names due;

  void arm(const std::string& name, std::chrono::milliseconds delay) {
    timers.arm(name, kStart + delay, [this, name] { due.push_back(name); });
  }
  Names run(std::chrono::milliseconds time) {
    due.clear();
    timers.run_due(kStart + time);
    return due;
  }
};

}  // namespace

TEST_CASE("timers are due in the order of their deadlines, each once") {
  NotingTimers noting;
  CHECK(!noting.timers.next_deadline());
  noting.arm("late", 3s);
  noting.arm("early", 1s);
  noting.arm("middle", 2s);
  CHECK(noting.timers.next_deadline() == kStart + 1s);
  CHECK(noting.run(999ms) == Names{});
  CHECK(noting.run(2s) == Names{"early", "middle"});
  CHECK(noting.timers.next_deadline() == kStart + 3s);
  CHECK(noting.run(1h) == Names{"late"});
  CHECK(noting.run(2h) == Names{});
  CHECK(!noting.timers.next_deadline());
}

TEST_CASE("timers of one deadline are due in the order they were set") {
  NotingTimers noting;
  for (const char* name : {"b", "a", "c"}) {
    noting.arm(name, 1s);
  }
  CHECK(noting.run(1s) == Names{"b", "a", "c"});
}

TEST_CASE("a timer that is set again replaces the one of its name") {
  NotingTimers noting;
  noting.arm("grace", 1s);
  noting.arm("other", 2s);
  noting.arm("grace", 5s);
  CHECK(noting.run(4s) == Names{"other"});
  CHECK(noting.timers.is_armed("grace"));
  CHECK(noting.run(5s) == Names{"grace"});
  CHECK(!noting.timers.is_armed("grace"));
}

TEST_CASE("a timer that is disarmed is not due, the others are") {
  NotingTimers noting;
  noting.arm("one", 1s);
  noting.arm("two", 2s);
  noting.timers.disarm("one");
  noting.timers.disarm("no such timer");
  CHECK(!noting.timers.is_armed("one"));
  CHECK(noting.timers.next_deadline() == kStart + 2s);
  CHECK(noting.run(9s) == Names{"two"});
}

TEST_CASE("a handler may set and disarm timers") {
  Timers timers;
  Names due;
  timers.arm("first", kStart, [&] {
    due.push_back("first");
    timers.disarm("second");
    // Due immediately, but only after the earlier timers, so that there is no
    // endless loop.
    timers.arm("first", kStart, [&] { due.push_back("first again"); });
  });
  timers.arm("second", kStart, [&] { due.push_back("second"); });
  timers.arm("third", kStart, [&] { due.push_back("third"); });
  timers.run_due(kStart);
  CHECK(due == Names{"first", "third"});
  timers.run_due(kStart);
  CHECK(due == Names{"first", "third", "first again"});
}

TEST_CASE("the loop wakes for each of its timers") {
  EventLoop loop;
  test::bound(loop);
  Names due;
  int rounds_ended = 0;
  const auto token = loop.watch_rounds([&] { ++rounds_ended; });
  loop.arm_timer("second", 2ms, [&] { due.push_back("second"); });
  loop.arm_timer("never", 1h, [&] { due.push_back("never"); });
  loop.arm_timer("first", 0ms, [&] { due.push_back("first"); });
  loop.arm_timer("gone", 1ms, [&] { due.push_back("gone"); });
  loop.disarm_timer("gone");
  int rounds = 0;
  while (due.size() < 2) {
    loop.run_once();
    ++rounds;
  }
  CHECK(due == Names{"first", "second"});
  CHECK(rounds <= 2);  // no other wake-up
  CHECK(rounds_ended == rounds);
  loop.unwatch(token);
  loop.arm_timer("last", 0ms, [] {});
  loop.run_once();
  CHECK(rounds_ended == rounds);
}
