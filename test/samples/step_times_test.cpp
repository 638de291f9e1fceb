#include "samples/support/step_times.h"

#include "test/samples/trace_events.h"
#include "test/support/catch.h"

using namespace samples;

namespace step_times_test {

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
