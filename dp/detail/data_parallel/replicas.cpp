#include "dp/detail/data_parallel/replicas.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/utils.h>

#include "ddp/detail/piece_of.h"
#include "dp/detail/data_parallel/gpu.h"
#include "dp/detail/data_parallel/gradient_path.h"

namespace dp::detail {
namespace {

/// Memory on the first device through which a flat tensor is sent.
constexpr int64_t kFlatCapBytes = 16 << 20;

std::vector<at::Tensor> sources_of(const StateLayout& layout) {
  std::vector<at::Tensor> sources;
  for (const auto& slot : layout.slots) {
    sources.push_back(slot.source);
  }
  return sources;
}

/// The module's tensors of one flat, side by side.
at::Tensor stage(const StateLayout& layout, size_t flat, c10::Device device) {
  const auto staged =
      at::empty({layout.flats[flat].numel},
                at::TensorOptions(device).dtype(layout.flats[flat].dtype));
  std::vector<at::Tensor> from;
  std::vector<at::Tensor> to;
  for (const auto& slot : layout.slots) {
    if (slot.flat == flat) {
      from.push_back(slot.source);
      to.push_back(
          ddp::detail::piece_of(staged, slot.offset, slot.sizes, slot.strides));
    }
  }
  at::_foreach_copy_(to, from);
  return staged;
}

void send(const StateLayout& layout,
          c10::Device device,
          const std::vector<Replica*>& remote) {
  for (size_t flat = 0; flat < layout.flats.size(); ++flat) {
    std::vector<at::Tensor> targets;
    for (const auto* replica : remote) {
      targets.push_back(replica->flats[flat]);
    }
    broadcast(stage(layout, flat, device), std::move(targets));
  }
}

}  // namespace

Replicas::Replicas(std::shared_ptr<torch::nn::Module> module,
                   std::vector<ReplicaSpec> specs,
                   MakeModule make,
                   TrafficCounters traffic)
    : module_(std::move(module)),
      specs_(std::move(specs)),
      make_(std::move(make)),
      traffic_(std::move(traffic)) {
  remake();
}

void Replicas::remake() {
  const auto state = read_state(*module_);
  expect_on_device(state, specs_.front().device);
  auto layout = lay_out(state, kFlatCapBytes);
  KnownTensors known;
  for (const auto& slot : layout.slots) {
    known.insert(slot.source.unsafeGetTensorImpl());
  }
  std::vector<Replica> copies;
  for (size_t i = 1; i < specs_.size(); ++i) {
    copies.push_back(
        make_replica(*module_, layout, i, specs_[i], make_, known));
  }
  layout_ = std::move(layout);
  copies_ = std::move(copies);
}

void Replicas::refresh(const std::vector<size_t>& members) {
  const auto state = read_state(*module_);
  expect_on_device(state, specs_.front().device);
  if (!fits(layout_, state)) {
    remake();
  }
  std::vector<Replica*> copies;
  for (const size_t member : members) {
    if (member > 0) {
      copies.push_back(&copies_[member - 1]);
    }
  }
  copy_state(copies);
  for (auto* copy : copies) {
    follow_versions(*copy, layout_);
    follow_modes(*copy);
  }
  connect_gradients(layout_, copies, traffic_);
}

void Replicas::copy_state(const std::vector<Replica*>& copies) {
  const torch::NoGradGuard no_grad;
  const auto device = specs_.front().device;
  const auto sources = sources_of(layout_);
  std::vector<Replica*> remote;
  for (auto* copy : copies) {
    claim_memory(*copy);
    (*traffic_)[copy->index].state += layout_.bytes();
    if (copy->spec.is_remote) {
      remote.push_back(copy);
    } else if (!sources.empty()) {
      at::_foreach_copy_(copy->pieces, sources);
    }
  }
  if (!remote.empty()) {
    send(layout_, device, remote);
  }
}

torch::nn::Module& Replicas::operator[](size_t replica) {
  return replica == 0 ? *module_ : *copies_[replica - 1].module;
}

}  // namespace dp::detail
