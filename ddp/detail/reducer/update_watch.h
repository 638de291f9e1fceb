#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/detail/reducer/late_reads.h"

namespace ddp::detail {

/// Counts the passes after which the parameters did not change: ranks that step
/// alike count alike. Looks at a few elements of a few parameters, because
/// LibTorch's optimizers write past autograd's version counters.
///
/// On a GPU, where looking would stall the host, it looks at copies that come
/// when they may, so it speaks of passes some time ago, and of those only where
/// it knows: at one pass all ranks that count, count up to the same one.
class UpdateWatch {
 public:
  /// On a GPU: the passes before the one that begins of which nothing is said.
  static constexpr int64_t kLag = 2;

  /// Watches those on the CPU, or, where there are none, on the first's device.
  explicit UpdateWatch(const std::vector<at::Tensor>& parameters);

  /// A pass begins. Returns how many passes before it (on a GPU: before those
  /// of the lag) were not followed by a change, if that is known.
  std::optional<int64_t> begin_pass();

  /// The pass ends. Queues a kernel and a copy on the current stream of a GPU.
  void end_pass();

 private:
  using Values = std::vector<char>;  // bytes

  void compare();
  void compare_arrived();
  std::optional<int64_t> count_before_lag();

  std::vector<at::Tensor> watched_;
  Values values_;  // of the pass before; empty at first
  Values now_;
  int64_t without_change_ = 0;

  // On a GPU: bytes of what is watched, and where they are gathered.
  std::vector<at::Tensor> pieces_;
  at::Tensor gathered_;
  std::vector<at::Tensor> places_;
  LateReads reads_;
  int64_t passes_ = 0;          // begun
  std::deque<int64_t> counts_;  // without_change_ at the end of each that is
                                // known, but for the first ones
  int64_t forgotten_ = 0;       // of them
};

}  // namespace ddp::detail
