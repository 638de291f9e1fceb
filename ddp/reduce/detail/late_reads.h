#pragma once

#include <deque>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace ddp::detail {

/// Elements of a device that come to the host when they may: nobody waits for
/// them, and none are left out.
class LateReads {
 public:
  /// Queues a copy of `elements`, as many as at all times and of one dtype, for
  /// after what the current stream of their device has to do by now.
  void read(const at::Tensor& elements);

  /// The oldest copy that was not taken, once it has arrived. Its memory serves
  /// a later `read`.
  std::optional<at::Tensor> take();

  /// Whether there is nothing to take, now or later.
  bool empty() const { return pending_.empty(); }

  /// Waits until all copies have arrived.
  void wait() const;

 private:
  struct Reading {
    at::Tensor host;
    c10::Event arrived;
  };

  std::deque<Reading> pending_;  // oldest first
  std::vector<Reading> spare_;
};

}  // namespace ddp::detail
