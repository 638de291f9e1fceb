#pragma once

#include <deque>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace ddp::detail {

/// Asynchronous copies from a device to the host, delivered in order. Nothing
/// waits for a copy, and no copy is dropped.
class AsyncHostCopies {
 public:
  /// Queues a copy of `elements` on the current stream of their device. All
  /// calls pass the same number of elements of one dtype.
  void enqueue(const at::Tensor& elements);

  /// Returns the oldest copy if it has arrived. A later `enqueue` reuses its
  /// memory.
  std::optional<at::Tensor> pop_arrived();

  bool empty() const { return pending_.empty(); }

  /// Waits until all copies have arrived.
  void wait() const;

 private:
  struct Copy {
    at::Tensor host;
    c10::Event arrived;
  };

  std::deque<Copy> pending_;  // oldest first
  std::vector<Copy> spare_;
};

}  // namespace ddp::detail
