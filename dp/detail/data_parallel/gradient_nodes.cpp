#include "dp/detail/data_parallel/gradient_nodes.h"

#include <limits>
#include <memory>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
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

/// Comes before every other node that is ready, as autograd's own accumulation
/// does: the memory of these gradients serves the next ones.
constexpr uint64_t kFirst = std::numeric_limits<uint64_t>::max();

// Autograd hands on tensors alone, and for each tensor of a GPU it makes the
// receiver's stream wait for the sender's. A parcel waits for its own copy, so
// it goes as the memory of a tensor on the CPU, without elements for anyone to
// read; who drops the tensor, drops the parcel.
at::Tensor wrap(std::unique_ptr<Parcel> parcel) {
  return at::from_blob(
      parcel.release(),
      {0},
      [](void* memory) { delete static_cast<Parcel*>(memory); },
      at::TensorOptions(at::kFloat));
}

/// The gradients in a parcel, once the current stream may use them.
const Tensors& unwrap(const at::Tensor& wrapped) {
  const auto& parcel = *static_cast<const Parcel*>(wrapped.storage().data());
  GradientLane::receive(parcel.sent);
  return parcel.gradients;
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
                           GradientLane lane,
                           TrafficCounters traffic)
    : Node(kFirst, std::move(edges)),
      replica_(replica),
      target_(target),
      lane_(lane),
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
  grads.push_back(joined.empty() ? at::Tensor() : pack(grads, joined));
  return std::move(grads);
}

/// Takes these gradients out of the list.
at::Tensor SendBackward::pack(Tensors& grads,
                              const std::vector<size_t>& members) const {
  Tensors rows;
  for (const size_t i : members) {
    rows.push_back(grads[i].reshape({-1}));
  }
  auto parcel = std::make_unique<Parcel>();
  // One alone may be large: it is sent as it is.
  parcel->sent = lane_.send(rows.size() == 1 ? rows.front() : at::cat(rows));
  parcel->gradients.resize(grads.size());
  int64_t offset = 0;
  for (const size_t i : members) {
    const c10::DimVector sizes(grads[i].sizes());
    // No view: the user may detach it in place.
    parcel->gradients[i] = ddp::detail::piece_of(
        parcel->sent.tensor, offset, sizes, c10::contiguous_strides(sizes));
    offset += grads[i].numel();
    grads[i] = at::Tensor();
  }
  return wrap(std::move(parcel));
}

ReduceBackward::ReduceBackward(ag::edge_list edges,
                               std::vector<Sender> senders,
                               TrafficCounters traffic)
    : Node(kFirst, std::move(edges)),
      senders_(std::move(senders)),
      traffic_(std::move(traffic)) {}

at::Tensor ReduceBackward::sample_parcel() {
  return at::empty({0}, at::TensorOptions(at::kFloat));
}

Tensors ReduceBackward::apply(Tensors&& grads) {
  std::vector<Sum> sums(num_outputs());
  size_t next_parcel = senders_.size() * sums.size();
  for (size_t k = 0; k < senders_.size(); ++k) {
    const auto& [replica, is_remote] = senders_[k];
    const auto wrapped =
        is_remote ? std::move(grads[next_parcel++]) : at::Tensor();
    const auto* sent = wrapped.defined() ? &unwrap(wrapped) : nullptr;
    Adder adder;
    for (size_t i = 0; i < sums.size(); ++i) {
      auto grad = std::move(grads[k * sums.size() + i]);
      const bool is_sent = sent != nullptr && (*sent)[i].defined();
      if (is_sent) {
        grad = (*sent)[i];
      }
      if (!is_remote) {
        (*traffic_)[replica].gradients += bytes_of(grad);
      }
      if (grad.defined() && task_should_compute_output(i)) {
        adder.add(sums[i], std::move(grad), is_sent);
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
