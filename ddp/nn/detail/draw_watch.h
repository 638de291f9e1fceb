#pragma once

#include <cstdint>

#include <ATen/record_function.h>

namespace ddp::detail {

/// While it lives, counts the operators on this thread that draw random numbers
/// on the CPU: those that LibTorch marks as `nondeterministic_seeded`, but for
/// those that consist of others, and those whose arguments turn dropout off.
class DrawWatch {
 public:
  DrawWatch();
  ~DrawWatch();
  DrawWatch(const DrawWatch&) = delete;
  DrawWatch& operator=(const DrawWatch&) = delete;

  int64_t count() const;

 private:
  int64_t before_;
  at::CallbackHandle handle_;
};

}  // namespace ddp::detail
