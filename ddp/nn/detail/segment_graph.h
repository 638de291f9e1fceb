#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace ddp::detail {

/// A point in time of this thread, to recognise autograd nodes created later.
class GraphMoment {
 public:
  /// Records the current point in time.
  GraphMoment();

  /// Returns true if this thread created the node after the recorded point.
  bool has(const torch::autograd::Node& node) const;

 private:
  uint64_t thread_;
  uint64_t sequence_;
};

/// Returns the ends of the graph of `outputs` that was created after `since`,
/// each once: the leaves that it accumulates into and, for each tensor with
/// history from outside, a placeholder tensor without values. The placeholder
/// has the sizes and options of that tensor, and its gradient edge in the older
/// graph.
/// @param outputs  created after `since` if they need a gradient.
std::vector<at::Tensor> ends_of(const std::vector<at::Tensor>& outputs,
                                const GraphMoment& since);

/// Returns true if both ends are the same leaf, or the same input of a node.
bool are_same_end(const at::Tensor& a, const at::Tensor& b);

/// Runs a backward pass without side effects: it changes no `.grad`, calls no
/// hooks of leaves and leaves older graphs unchanged.
/// @param outputs  have a graph without other users, which is consumed.
/// @param since    a point before the graph was created.
/// @param ends  ends that need gradients; other ends get none.
/// @return the gradient of each end, undefined if none reaches it.
std::vector<at::Tensor> gradients_at_ends(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& gradients,
    const GraphMoment& since,
    const std::vector<at::Tensor>& ends);

}  // namespace ddp::detail
