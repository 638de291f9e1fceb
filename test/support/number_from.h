#pragma once

#include <cstdint>
#include <cstdlib>

namespace ddp::test {

/// Returns the value of an environment variable as a number, or `usual` if it
/// is not set.
inline uint64_t number_from(const char* variable, uint64_t usual) {
  const char* asked = std::getenv(variable);
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : usual;
}

}  // namespace ddp::test
