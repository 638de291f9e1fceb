#pragma once

#include <cstdint>

#include <ATen/record_function.h>

namespace ddp::detail {

/// Counts, during its lifetime, the operators on this thread that draw random
/// numbers on the CPU: operators that LibTorch marks as
/// `nondeterministic_seeded`, except composite operators and calls whose
/// arguments disable dropout.
class DrawCounter {
 public:
  DrawCounter();
  ~DrawCounter();
  DrawCounter(const DrawCounter&) = delete;
  DrawCounter& operator=(const DrawCounter&) = delete;

  /// Returns the number of draws since construction.
  int64_t count() const;

 private:
  int64_t before_;
  at::CallbackHandle handle_;
};

}  // namespace ddp::detail
