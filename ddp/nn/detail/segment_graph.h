#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace ddp::detail {

/// A moment of this thread: what it has put into graphs since then.
class GraphMoment {
 public:
  /// Now.
  GraphMoment();

  /// Whether the node is of this thread, and not older.
  bool has(const torch::autograd::Node& node) const;

 private:
  uint64_t thread_;
  uint64_t sequence_;
};

/// Where the graph of `outputs` that was made since then ends, each once: the
/// leaves that it accumulates into, and, for a tensor with a history that came
/// in from outside, a tensor without values that stands for it: of its sizes
/// and kind, with its place in the older graph.
/// @param outputs  made since then, where they need a gradient.
std::vector<at::Tensor> ends_of(const std::vector<at::Tensor>& outputs,
                                const GraphMoment& since);

/// Whether two ends are the same leaf, or the same place.
bool are_same_end(const at::Tensor& a, const at::Tensor& b);

/// Runs a backward pass that leaves nothing behind: no `.grad` changes, no hook
/// of a leaf is called, and older graphs stay as they are.
/// @param outputs  with a graph that nobody else uses; it is spent.
/// @param since  before it was made.
/// @param ends  whose gradients are asked for; others get none.
/// @return the gradient of each end, undefined where none comes.
std::vector<at::Tensor> gradients_at_ends(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& gradients,
    const GraphMoment& since,
    const std::vector<at::Tensor>& ends);

}  // namespace ddp::detail
