#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace ddp::detail {

/// Tells all ranks that one of them failed, without a collective of its own: an
/// extra element of a bucket that is all-reduced anyway. Zero means all is
/// well; a rank that failed adds one.
class FailureFlag {
 public:
  /// @param element  one element of the bucket that is reduced last.
  explicit FailureFlag(const at::Tensor& element);

  /// This rank failed. Call before the bucket is launched.
  void raise();

  /// True when some rank has raised the flag. Call after the bucket was
  /// reduced. On the CPU it speaks of this reduction; on a GPU, where reading
  /// would stall the stream, of the newest one whose value is known already.
  bool raised();

  /// Forgets what was raised.
  void clear();

 private:
  void fetch();

  at::Tensor element_;
  at::Tensor host_;  // undefined on the CPU
  std::unique_ptr<c10::Event> fetched_;
};

}  // namespace ddp::detail
