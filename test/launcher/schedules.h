#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

namespace launcher::test {

/// Returns the first and the last seed of the schedules that a simulation runs:
/// `count` from 1 on. DDP_MEMBERSHIP_SCHEDULES sets another number and
/// DDP_MEMBERSHIP_SEED another first seed.
inline std::pair<uint64_t, uint64_t> schedules(uint64_t count) {
  const auto asked = [](const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::stoull(text) : otherwise;
  };
  const uint64_t first = asked("DDP_MEMBERSHIP_SEED", 1);
  return {first, first + asked("DDP_MEMBERSHIP_SCHEDULES", count) - 1};
}

}  // namespace launcher::test
