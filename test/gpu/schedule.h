#pragma once

#include <iterator>
#include <string>

#include "test/fake_gpu/control.h"
#include "test/support/catch.h"
#include "test/support/number_from.h"

namespace ddp::test {

/// Modes of the schedules of a test.
inline constexpr fake_gpu::Mode kModes[] = {
    fake_gpu::Mode::lazy, fake_gpu::Mode::mixed, fake_gpu::Mode::priority};

/// Uses schedule `i` of the stand-in until the next test, which starts with the
/// schedule of the environment again (main.cpp). FAKE_GPU_SEED changes the
/// seeds of all schedules. Returns the schedule's name, for an INFO.
inline std::string use_schedule(size_t i) {
  constexpr const char* kNames[] = {"eager", "lazy", "mixed", "priority"};
  const auto mode = kModes[i % std::size(kModes)];
  const uint64_t seed = number_from("FAKE_GPU_SEED", 1) + i;
  fake_gpu::schedule(mode, seed);
  return std::string(kNames[static_cast<int>(mode)]) + ", seed " +
         std::to_string(seed);
}

/// Repeats the calling test over the stand-in once for each schedule. On a real
/// GPU the test runs once. Returns the name of the schedule, for an INFO.
inline std::string any_schedule() {
  if (!fake_gpu::active()) {
    return "the GPU's own";
  }
  return use_schedule(GENERATE_COPY(range(size_t{0}, std::size(kModes))));
}

}  // namespace ddp::test
