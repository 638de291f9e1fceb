#include "launcher/coordinator/clock_offset.h"

#include <random>

#include "test/support/catch.h"

using namespace launcher;
using namespace std::chrono_literals;

namespace {

using Time = ClockOffset::Time;
using std::chrono::nanoseconds;

}  // namespace

TEST_CASE("nobody knows another clock before its first answer") {
  ClockOffset clock;
  CHECK(!clock.there(Time(1s)));
  clock.add(Time(2s), 5s, Time(1s));  // an answer before its question
  CHECK(!clock.there(Time(1s)));
  clock.add(Time(1s), 5s, Time(2s));
  CHECK(clock.there(Time(1s)));
  clock.forget();
  CHECK(!clock.there(Time(1s)));
}

TEST_CASE("another clock is known to within half the time of the answer") {
  ClockOffset clock;
  clock.add(Time(10s), 110s, Time(10s + 4ms));
  const auto now = clock.there(Time(10s + 4ms));
  REQUIRE(now);
  CHECK(now->at == 110s + 2ms);
  CHECK(now->error == 2ms + 800ns);  // a drift of 4 ms
  // Each second adds what two clocks may drift apart.
  const auto later = clock.there(Time(20s + 4ms));
  CHECK(later->at == 120s + 2ms);
  CHECK(later->error == 2ms + 800ns + 2ms);
  const auto earlier = clock.there(Time(9s + 4ms));
  CHECK(earlier->at == 109s + 2ms);
  CHECK(earlier->error == 2ms + 800ns + 200us);
}

TEST_CASE("the best answer counts, as long as it is the best") {
  ClockOffset clock;
  clock.add(Time(0s), 100s, Time(4ms));
  clock.add(Time(1s), 101s, Time(1s + 100ms));
  CHECK(clock.there(Time(1s + 100ms))->error < 3ms);
  clock.add(Time(2s), 102s, Time(2s + 2ms));
  CHECK(clock.there(Time(2s + 2ms))->error == 1ms + 400ns);
  // The drift of 1000 s is more than a slow answer leaves.
  clock.add(Time(1002s), 1102s, Time(1002s + 100ms));
  CHECK(clock.there(Time(1002s + 100ms))->error == 50ms + 20us);
}

TEST_CASE("an answer that contradicts the earlier ones counts alone") {
  ClockOffset clock;
  clock.add(Time(0s), 100s, Time(2ms));
  clock.add(Time(1s), 161s, Time(1s + 100ms));  // we slept for a minute
  const auto now = clock.there(Time(1s + 100ms));
  CHECK(now->at == 161s + 50ms);
  CHECK(now->error == 50ms + 20us);
}

TEST_CASE("the other clock is within the error, whatever the ways and drift") {
  std::mt19937_64 random(7);
  const auto up_to = [&random](nanoseconds most) {
    return nanoseconds(random() % static_cast<uint64_t>(most.count() + 1));
  };
  for (int job = 0; job < 50; ++job) {
    const nanoseconds offset = up_to(10h) - 5h;
    const int64_t drift = static_cast<int64_t>(random() % 401) - 200;  // ppm
    // What it shows when ours shows `here`.
    const auto truth = [&](nanoseconds here) {
      return here + offset + here * drift / 1'000'000;
    };
    ClockOffset clock;
    nanoseconds now = 10h;
    for (int answer = 0; answer < 50; ++answer) {
      now += up_to(5s);
      const nanoseconds there = now + up_to(20ms);
      const nanoseconds back = there + up_to(answer % 2 == 0 ? 20ms : 1us);
      clock.add(Time(now), truth(there), Time(back));
      now = back;
      const nanoseconds asked = now + up_to(2s) - 1s;
      const auto known = clock.there(Time(asked));
      REQUIRE(known);
      CAPTURE(job, answer);
      // Divisions leave some nanoseconds.
      CHECK(std::chrono::abs(known->at - truth(asked)) <= known->error + 3ns);
    }
  }
}
