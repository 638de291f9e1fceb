#include "test/launcher/hosts/membership_simulation.h"

#include "test/launcher/schedules.h"
#include "test/support/catch.h"

using namespace launcher::test;

TEST_CASE(
    "hosts come, go and are cut off: one group a generation, and an end") {
  const auto [first, last] = schedules(/*count=*/1500);
  for (uint64_t seed = first; seed <= last; ++seed) {
    try {
      MembershipSimulation(seed).run();
    } catch (const std::exception& error) {
      FAIL("schedule " << seed << ": " << error.what());
    }
  }
}
