#include "dp/detail/data_parallel/gradient_nodes.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <c10/util/DimVector.h>
#include <c10/util/strides.h>

#include "ddp/detail/piece_of.h"
#include "dp/detail/data_parallel/scatter.h"

namespace dp::detail {
namespace {

namespace ag = torch::autograd;
using Tensors = ag::variable_list;

bool is_dense(const at::Tensor& grad) {
  return grad.defined() && grad.layout() == c10::kStrided;
}

void send_together(Tensors& grads,
                   const std::vector<size_t>& members,
                   c10::Device target) {
  Tensors rows;
  for (const size_t i : members) {
    rows.push_back(grads[i].reshape({-1}));
  }
  const auto flat = to_device(at::cat(rows), target);
  int64_t offset = 0;
  for (const size_t i : members) {
    const c10::DimVector sizes(grads[i].sizes());
    // No view: the user may detach it in place.
    grads[i] = ddp::detail::piece_of(
        flat, offset, sizes, c10::contiguous_strides(sizes));
    offset += grads[i].numel();
  }
}

/// The gradient of one parameter while those of replicas are added to it.
struct Sum {
  at::Tensor value;
  bool is_ours = false;  // its memory is nobody else's: add in place
};

bool is_sole_owner(const at::Tensor& grad) {
  return grad.use_count() == 1 && grad.storage().use_count() == 1 &&
         grad.is_non_overlapping_and_dense() && !grad._is_zerotensor();
}

/// Sums that are ours grow by one call for all of them.
class Adder {
 public:
  void add(Sum& sum, at::Tensor grad, bool is_fresh) {
    const bool may_overwrite = !c10::GradMode::is_enabled();
    if (!sum.value.defined()) {
      sum.is_ours =
          may_overwrite && is_dense(grad) && (is_fresh || is_sole_owner(grad));
      sum.value = std::move(grad);
    } else if (sum.is_ours && is_dense(grad)) {
      into_.push_back(sum.value);
      from_.push_back(std::move(grad));
    } else {
      // Dense + sparse is implemented, sparse + dense is not.
      sum.value = sum.value.is_sparse() ? grad + sum.value : sum.value + grad;
      sum.is_ours = may_overwrite && is_dense(sum.value);
    }
  }

  void finish() {
    if (!into_.empty()) {
      at::_foreach_add_(into_, from_);
    }
  }

 private:
  Tensors into_;
  Tensors from_;
};

}  // namespace

SendBackward::SendBackward(ag::edge_list edges,
                           size_t replica,
                           c10::Device target,
                           TrafficCounters traffic)
    : Node(std::move(edges)),
      replica_(replica),
      target_(target),
      traffic_(std::move(traffic)) {}

Tensors SendBackward::apply(Tensors&& grads) {
  (*traffic_)[replica_].gradients += bytes_of(grads);
  const bool may_join = !c10::GradMode::is_enabled();
  std::vector<size_t> joined;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (may_join && is_dense(grads[i])) {
      joined.push_back(i);
    } else {
      grads[i] = to_device(grads[i], target_);
    }
  }
  if (!joined.empty()) {
    send_together(grads, joined, target_);
  }
  return std::move(grads);
}

ReduceBackward::ReduceBackward(ag::edge_list edges,
                               std::vector<Sender> senders,
                               TrafficCounters traffic)
    : Node(std::move(edges)),
      senders_(std::move(senders)),
      traffic_(std::move(traffic)) {}

Tensors ReduceBackward::apply(Tensors&& grads) {
  std::vector<Sum> sums(num_outputs());
  for (size_t k = 0; k < senders_.size(); ++k) {
    const auto& [replica, is_remote] = senders_[k];
    Adder adder;
    for (size_t i = 0; i < sums.size(); ++i) {
      auto grad = std::move(grads[k * sums.size() + i]);
      if (!is_remote) {
        (*traffic_)[replica].gradients += bytes_of(grad);
      }
      if (grad.defined() && task_should_compute_output(i)) {
        adder.add(sums[i], std::move(grad), is_remote);
      }
    }
    adder.finish();
  }
  Tensors result;
  for (auto& sum : sums) {
    result.push_back(std::move(sum.value));
  }
  return result;
}

}  // namespace dp::detail
