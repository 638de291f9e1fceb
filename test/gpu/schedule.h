#pragma once

#include <iterator>
#include <string>

#include "test/fake_gpu/control.h"
#include "test/support/catch.h"

namespace ddp::test {

/// Repeats the calling test over the stand-in once for each of several
/// schedules. On a real GPU the test runs once. Returns the name of the
/// schedule, for an INFO.
inline std::string any_schedule() {
  using fake_gpu::Mode;
  struct Schedule {
    Mode mode;
    uint64_t seed;
    const char* name;
  };
  static constexpr Schedule kSchedules[] = {
      {Mode::lazy, 1, "lazy, seed 1"},
      {Mode::mixed, 2, "mixed, seed 2"},
      {Mode::priority, 3, "priority, seed 3"},
      {Mode::priority, 4, "priority, seed 4"}};
  if (!fake_gpu::active()) {
    return "the GPU's own";
  }
  const auto& chosen =
      kSchedules[GENERATE_COPY(range(size_t{0}, std::size(kSchedules)))];
  fake_gpu::schedule(chosen.mode, chosen.seed);
  return chosen.name;
}

}  // namespace ddp::test
