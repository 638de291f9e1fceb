#include "dp/data_parallel/detail/replicas.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/utils.h>

#include "ddp/tensors/alias_without_view.h"
#include "ddp/tensors/renormed_embedding.h"
#include "dp/data_parallel/detail/gpu.h"

namespace dp::detail {
namespace {

/// Returns true if the module's tensor has the memory layout of its slot.
bool is_flat(const Slot& slot) {
  return slot.source.strides() == slot.strides && !slot.source.is_conj() &&
         !slot.source.is_neg();
}

/// Returns the module's tensors of one flat tensor side by side. A single
/// tensor, which may be large, is returned as an alias of its own memory;
/// several tensors are copied into new memory.
at::Tensor stage(const StateLayout& layout, const FlatSpec& flat) {
  if (flat.slots.size() == 1 && is_flat(layout.slots[flat.slots.front()])) {
    const auto& source = layout.slots[flat.slots.front()].source;
    return ddp::detail::alias_without_view(
        source, source.storage_offset(), {flat.numel}, {1});
  }
  const auto staged = at::empty(
      {flat.numel}, at::TensorOptions(layout.device).dtype(flat.dtype));
  std::vector<at::Tensor> from;
  std::vector<at::Tensor> to;
  for (const size_t member : flat.slots) {
    const auto& slot = layout.slots[member];
    from.push_back(slot.source);
    to.push_back(ddp::detail::alias_without_view(
        staged, slot.offset, slot.sizes, slot.strides));
  }
  at::_foreach_copy_(to, from);
  return staged;
}

}  // namespace

Replicas::Replicas(std::shared_ptr<torch::nn::Module> module,
                   std::vector<c10::Device> devices,
                   MakeModule make,
                   TrafficCounters traffic)
    : module_(std::move(module)),
      devices_(std::move(devices)),
      make_(std::move(make)),
      traffic_(std::move(traffic)) {
  remake();
}

void Replicas::remake() {
  const auto state = read_state(module_);
  expect_on_device(state, devices_.front());
  make(state);
}

void Replicas::make(const ModuleState& state) {
  if (devices_.size() < 2) {
    return;
  }
  const auto renormed = ddp::detail::renormed_embedding(*module_);
  TORCH_CHECK(renormed.empty(),
              "Expected embeddings without max_norm in a module on several "
              "devices, because a forward renormalises rows in its own "
              "replica, but got ",
              renormed,
              " with it; leave max_norm out, and call "
              "weight.renorm_(2, 0, max_norm) under a NoGradGuard after each "
              "step of the optimizer");
  auto layout = lay_out(state, devices_.front());
  path_.reset();
  copies_.clear();
  layout_ = {};  // matches no module
  KnownTensors known;
  for (const auto& slot : layout.slots) {
    known.insert(slot.source.unsafeGetTensorImpl());
  }
  std::vector<Replica> copies;
  for (size_t i = 1; i < devices_.size(); ++i) {
    copies.push_back(make_replica(layout, i, devices_[i], make_, known));
  }
  layout_ = std::move(layout);
  copies_ = std::move(copies);
}

void Replicas::refresh(const std::vector<size_t>& members) {
  const auto state = read_state(module_);
  expect_on_device(state, devices_.front());
  if (devices_.size() < 2) {
    return;  // No replicas are kept, so concurrent calls are up to the module.
  }
  if (!fits(layout_, state)) {
    make(state);
  }
  std::vector<Replica*> copies;
  for (const size_t member : members) {
    if (member > 0) {
      copies.push_back(&copies_[member - 1]);
    }
  }
  copy_state(copies);
  connect_gradients(copies);
}

void Replicas::copy_state(const std::vector<Replica*>& copies) {
  const torch::NoGradGuard no_grad;
  std::vector<c10::Device> targets;
  for (auto* copy : copies) {
    follow_module(*copy, layout_);
    (*traffic_)[copy->index].state += layout_.bytes;
    targets.push_back(copy->device);
  }
  broadcast(layout_.device, targets, layout_.flats.size(), [&](size_t flat) {
    Broadcast next{stage(layout_, layout_.flats[flat]), {}};
    for (const auto* copy : copies) {
      next.to.push_back(copy->flats[flat]);
    }
    return next;
  });
}

void Replicas::connect_gradients(const std::vector<Replica*>& copies) {
  if (copies.empty()) {
    return;
  }
  if (!path_ || !path_->is_valid_for(layout_)) {
    path_.reset();  // otherwise the accumulators would keep the old streams
    path_.emplace(layout_, copies_, traffic_);
  }
  for (const auto* copy : copies) {
    path_->connect(*copy, copies_);
  }
}

void Replicas::check_nothing_registered() const {
  const auto state = read_state(module_);
  TORCH_CHECK(state.modules == layout_.modules &&
                  state.tensors.size() == layout_.slot_of.size(),
              "Expected a forward of ",
              module_->name(),
              " that registers nothing, but it has added or replaced "
              "submodules, parameters or buffers, which each replica has made "
              "with values of its own; make them in the constructor, or call "
              "the module itself once before it is wrapped");
}

torch::nn::Module& Replicas::operator[](size_t replica) {
  return replica == 0 ? *module_ : *copies_[replica - 1].module;
}

}  // namespace dp::detail
