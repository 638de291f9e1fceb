#include "samples/support/step_times.h"

#include "test/support/catch.h"

using namespace ddp;
using namespace samples;
using Kind = TraceEvent::Kind;

namespace step_times_test {

constexpr int64_t kMs = 1'000'000;

// Returns begin, end, begin, end, ...
std::vector<int64_t> flat(const TimeSpans& spans) {
  std::vector<int64_t> result;
  for (const TimeSpan& span : spans) {
    result.insert(result.end(), {span.begin, span.end});
  }
  return result;
}

TraceEvent event(Kind kind,
                 const std::string& name,
                 int64_t begin,
                 int64_t end,
                 int64_t elements = 0) {
  return {kind, name, {begin * kMs, end * kMs}, elements};
}

// Two steps, with compute in [10, 16) and [110, 118): 6 and 8 ms.
const std::vector<TraceEvent> kTwoSteps{
    event(Kind::scope, "forward", 0, 10),
    event(Kind::scope, "backward", 10, 20),
    event(Kind::compute, "f", 10, 13),
    event(Kind::compute, "g", 12, 16),  // overlaps f
    event(Kind::communication, "all_reduce", 12, 15, 7),
    event(Kind::communication, "all_reduce", 14, 19, 5),
    event(Kind::scope, "optimizer", 20, 21),
    // Work of one rank outside of a step does not count.
    event(Kind::scope, "backward alone", 50, 56),
    event(Kind::compute, "f", 50, 56),
    event(Kind::scope, "forward", 100, 106),
    event(Kind::scope, "backward", 106, 120),
    event(Kind::compute, "f", 110, 118),
    event(Kind::communication, "all_reduce", 116, 120, 5),
    event(Kind::communication, "all_reduce", 111, 113, 7),
    event(Kind::scope, "optimizer", 120, 123),
};

TEST_CASE("where the time of a step goes", "[step_times]") {
  const auto times = step_times(kTwoSteps, 2);
  CHECK(times.forward == Approx(8));
  CHECK(times.backward == Approx(12));
  CHECK(times.compute == Approx(7));
  // Communication in [12, 19), [111, 113) and [116, 120). Hidden: [12, 16),
  // [111, 113) and [116, 118).
  CHECK(times.communication == Approx(6.5));
  CHECK(times.hidden == Approx(4));
  CHECK(times.exposed == Approx(2.5));
  CHECK(times.optimizer == Approx(2));
  CHECK(flat(scopes(kTwoSteps, "backward alone")) ==
        std::vector<int64_t>{50 * kMs, 56 * kMs});
  CHECK(scopes(kTwoSteps, "nothing").empty());
}

TEST_CASE("the all-reduces of the last step", "[step_times]") {
  const auto found = last_all_reduces(kTwoSteps);
  REQUIRE(found.size() == 2);
  CHECK(found[0].begin == Approx(5));
  CHECK(found[0].end == Approx(7));
  CHECK(found[0].hidden == Approx(1));
  CHECK(found[0].elements == 7);
  CHECK(found[1].begin == Approx(10));
  CHECK(found[1].end == Approx(14));
  CHECK(found[1].hidden == Approx(0.5));
  CHECK(found[1].elements == 5);
  CHECK(last_all_reduces({}).empty());
}

}  // namespace step_times_test
