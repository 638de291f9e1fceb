#include "test/launcher/hosts/membership_simulation.h"

#include <cstdlib>

#include "test/support/catch.h"

using namespace launcher::test;

namespace {

uint64_t count_of_schedules() {
  const char* asked = std::getenv("DDP_MEMBERSHIP_SCHEDULES");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : 10'000;
}

}  // namespace

TEST_CASE(
    "hosts come, go and are cut off: one group a generation, and an end") {
  const uint64_t count = count_of_schedules();
  for (uint64_t seed = 1; seed <= count; ++seed) {
    try {
      MembershipSimulation(seed).run();
    } catch (const std::exception& error) {
      FAIL("schedule " << seed << ": " << error.what());
    }
  }
}
