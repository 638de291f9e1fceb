#include "dp/detail/gradient_path.h"

#include <map>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/cat.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/detail/bucket.h"
#include "dp/detail/scatter.h"

namespace dp::detail {
namespace {

namespace ag = torch::autograd;
using Tensors = ag::variable_list;

/// Gradients of one replica, from its device to the module's.
class SendBackward : public ag::Node {
 public:
  SendBackward(ag::edge_list edges,
               size_t replica,
               c10::Device target,
               TrafficCounters traffic)
      : Node(std::move(edges)),
        replica_(replica),
        target_(target),
        traffic_(std::move(traffic)) {}

  std::string name() const override { return "dp::SendBackward"; }

 protected:
  Tensors apply(Tensors&& grads) override {
    (*traffic_)[replica_].gradients += bytes_of(grads);
    if (c10::GradMode::is_enabled()) {
      for (auto& grad : grads) {
        grad = moved(grad, target_);
      }
      return std::move(grads);
    }
    std::map<c10::ScalarType, std::vector<size_t>> groups;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined() && grads[i].layout() == c10::kStrided) {
        groups[grads[i].scalar_type()].push_back(i);
      } else {
        grads[i] = moved(grads[i], target_);
      }
    }
    for (const auto& group : groups) {
      send_together(grads, group.second);
    }
    return std::move(grads);
  }

 private:
  void send_together(Tensors& grads, const std::vector<size_t>& members) const {
    Tensors rows;
    for (const size_t i : members) {
      rows.push_back(grads[i].reshape({-1}));
    }
    const auto flat = moved(at::cat(rows), target_);
    int64_t offset = 0;
    for (const size_t i : members) {
      const c10::DimVector sizes(grads[i].sizes());
      // No view: the user may detach it in place.
      grads[i] = ddp::detail::piece_of(
          flat, offset, sizes, c10::contiguous_strides(sizes));
      offset += grads[i].numel();
    }
  }

  size_t replica_;
  c10::Device target_;
  TrafficCounters traffic_;
};

/// The gradient of one parameter while replicas' gradients are added to it.
struct Sum {
  ag::Variable value;
  bool is_ours = false;  // its memory is nobody else's: add in place
};

bool is_sole_owner(const ag::Variable& grad) {
  return grad.use_count() == 1 && grad.layout() == c10::kStrided &&
         grad.storage().use_count() == 1 &&
         grad.is_non_overlapping_and_dense() && !grad._is_zerotensor();
}

/// Adds up the gradients of all replicas but the first.
class ReduceBackward : public ag::Node {
 public:
  /// A replica whose gradients come in.
  struct Sender {
    size_t replica;
    bool is_remote;  // they come through a SendBackward, in memory of ours
  };

  ReduceBackward(ag::edge_list edges,
                 std::vector<Sender> senders,
                 TrafficCounters traffic)
      : Node(std::move(edges)),
        senders_(std::move(senders)),
        traffic_(std::move(traffic)) {}

  std::string name() const override { return "dp::ReduceBackward"; }

 protected:
  Tensors apply(Tensors&& grads) override {
    count(grads);
    std::vector<Sum> sums(num_outputs());
    for (size_t k = 0; k < senders_.size(); ++k) {
      add(sums, grads.data() + k * sums.size(), senders_[k].is_remote);
    }
    Tensors result;
    for (size_t i = 0; i < sums.size(); ++i) {
      result.push_back(std::move(sums[i].value));
    }
    return result;
  }

 private:
  void count(const Tensors& grads) const {
    for (size_t i = 0; i < grads.size(); ++i) {
      const auto& sender = senders_[i / num_outputs()];
      if (!sender.is_remote) {
        (*traffic_)[sender.replica].gradients += bytes_of(grads[i]);
      }
    }
  }

  void add(std::vector<Sum>& sums, ag::Variable* grads, bool is_remote) const {
    const bool may_overwrite = !c10::GradMode::is_enabled();
    Tensors into;
    Tensors from;
    for (size_t i = 0; i < sums.size(); ++i) {
      auto grad = std::move(grads[i]);
      auto& [value, is_ours] = sums[i];
      if (!grad.defined() || !task_should_compute_output(i)) {
        continue;
      }
      const bool is_dense = grad.layout() == c10::kStrided;
      if (!value.defined()) {
        is_ours =
            may_overwrite && is_dense && (is_remote || is_sole_owner(grad));
        value = std::move(grad);
      } else if (is_ours && is_dense) {
        into.push_back(value);
        from.push_back(std::move(grad));
      } else {
        // Dense + sparse is implemented, sparse + dense is not.
        value = value.is_sparse() ? grad + value : value + grad;
        is_ours = may_overwrite && value.layout() == c10::kStrided;
      }
    }
    if (!into.empty()) {
      at::_foreach_add_(into, from);
    }
  }

  std::vector<Sender> senders_;
  TrafficCounters traffic_;
};

/// Slots whose tensors need a gradient.
std::vector<size_t> trained_slots(const StateLayout& layout) {
  std::vector<size_t> result;
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    if (layout.slots[i].source.requires_grad()) {
      result.push_back(i);
    }
  }
  return result;
}

std::shared_ptr<ReduceBackward> make_reduce(
    const StateLayout& layout,
    const std::vector<size_t>& trained,
    const std::vector<Replica*>& replicas,
    const TrafficCounters& traffic) {
  ag::edge_list edges;
  for (const size_t slot : trained) {
    edges.push_back(ag::impl::gradient_edge(layout.slots[slot].source));
  }
  std::vector<ReduceBackward::Sender> senders;
  for (const auto* replica : replicas) {
    senders.push_back({replica->index, replica->place.is_remote});
  }
  auto reduce = std::make_shared<ReduceBackward>(
      std::move(edges), std::move(senders), traffic);
  for (const auto* replica : replicas) {
    for (const size_t slot : trained) {
      // The device of the inputs is that of the node's stream.
      reduce->add_input_metadata(replica->place.is_remote
                                     ? layout.slots[slot].source
                                     : replica->pieces[slot]);
    }
  }
  return reduce;
}

/// The edges at which the gradients of a replica leave it.
ag::edge_list exits_of(const Replica& replica,
                       const std::vector<size_t>& trained,
                       const std::shared_ptr<ReduceBackward>& reduce,
                       size_t sender,
                       c10::Device device,
                       const TrafficCounters& traffic) {
  ag::edge_list exits;
  for (size_t i = 0; i < trained.size(); ++i) {
    exits.emplace_back(reduce,
                       static_cast<uint32_t>(sender * trained.size() + i));
  }
  if (!replica.place.is_remote) {
    return exits;
  }
  const auto send = std::make_shared<SendBackward>(
      std::move(exits), replica.index, device, traffic);
  ag::edge_list result;
  for (const size_t slot : trained) {
    result.emplace_back(send, send->add_input_metadata(replica.pieces[slot]));
  }
  return result;
}

}  // namespace

void connect_gradients(const StateLayout& layout,
                       const std::vector<Replica*>& replicas,
                       const TrafficCounters& traffic) {
  const auto trained = trained_slots(layout);
  std::shared_ptr<ReduceBackward> reduce;
  if (!trained.empty()) {
    reduce = make_reduce(layout, trained, replicas, traffic);
  }
  for (size_t k = 0; k < replicas.size(); ++k) {
    std::vector<ag::Edge> exit_of(layout.slots.size());
    if (reduce) {
      const auto device = layout.slots[trained.front()].source.device();
      const auto exits =
          exits_of(*replicas[k], trained, reduce, k, device, traffic);
      for (size_t i = 0; i < trained.size(); ++i) {
        exit_of[trained[i]] = exits[i];
      }
    }
    for (const auto& member : replicas[k]->members) {
      ag::impl::set_gradient_edge(member.tensor, exit_of[member.slot]);
    }
  }
}

}  // namespace dp::detail
