#include "dp/detail/data_parallel/replica.h"

#include <algorithm>
#include <typeinfo>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include "ddp/detail/explain.h"
#include "ddp/detail/piece_of.h"

namespace dp::detail {
namespace {

std::shared_ptr<torch::nn::Module> copy_of(const torch::nn::Module& module,
                                           c10::Device device,
                                           const MakeModule& make) {
  const auto copy = ddp::detail::explain(
      "Cannot make a replica of " + module.name() +
          " (derive it from torch::nn::Cloneable, or give "
          "DataParallelOptions().make_replica())",
      [&] { return make ? make() : module.clone(device); });
  TORCH_CHECK(copy != nullptr,
              "Expected a replica of ",
              module.name(),
              ", but got an empty pointer");
  const auto& original = module;
  const auto& replica = *copy;
  TORCH_CHECK(typeid(replica) == typeid(original),
              "Expected a replica of type ",
              module.name(),
              ", but got ",
              replica.name(),
              "; clone() must be that of the most derived class");
  return copy;
}

void expect_structure(const torch::nn::Module& module,
                      const NamedState& own,
                      const NamedState& copy) {
  for (size_t i = 0; i < std::max(own.names.size(), copy.names.size()); ++i) {
    const auto name = [i](const NamedState& state) {
      return i < state.names.size() ? state.names[i] : "nothing";
    };
    TORCH_CHECK(name(own) == name(copy),
                "Expected a replica with the parameters and buffers of ",
                module.name(),
                ", but got ",
                name(copy),
                " where it has ",
                name(own));
  }
}

std::vector<Replica::Member> members_of(const torch::nn::Module& module,
                                        const StateLayout& layout,
                                        const NamedState& copy,
                                        KnownTensors& known) {
  std::vector<Replica::Member> members;
  KnownTensors own;
  for (size_t i = 0; i < copy.tensors.size(); ++i) {
    const auto* tensor = copy.tensors[i].unsafeGetTensorImpl();
    TORCH_CHECK(known.count(tensor) == 0,
                "Expected a replica of ",
                module.name(),
                " with tensors of its own, but ",
                copy.names[i],
                " is that of the module or of another replica; make each anew");
    if (own.insert(tensor).second) {
      members.push_back({copy.tensors[i], layout.slot_of[i]});
    }
  }
  known.merge(own);
  return members;
}

void allocate(Replica& replica, const StateLayout& layout) {
  const auto options = at::TensorOptions(replica.spec.device);
  for (const auto& flat : layout.flats) {
    replica.flats.push_back(at::empty({flat.numel}, options.dtype(flat.dtype)));
  }
  for (const auto& slot : layout.slots) {
    replica.pieces.push_back(ddp::detail::piece_of(
        replica.flats[slot.flat], slot.offset, slot.sizes, slot.strides));
  }
}

std::vector<Replica::ModulePair> pair_submodules(
    const torch::nn::Module& module, const torch::nn::Module& copy) {
  const auto own = module.modules();
  const auto others = copy.modules();
  TORCH_CHECK(own.size() == others.size(),
              "Expected a replica with the ",
              own.size(),
              " submodules of ",
              module.name(),
              ", but got ",
              others.size());
  std::vector<Replica::ModulePair> pairs;
  for (size_t i = 0; i < own.size(); ++i) {
    pairs.emplace_back(own[i].get(), others[i].get());
  }
  return pairs;
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

bool has_memory_of(const at::Tensor& tensor, const at::Tensor& piece) {
  return tensor.const_data_ptr() == piece.const_data_ptr() &&
         tensor.sizes() == piece.sizes() && tensor.strides() == piece.strides();
}

}  // namespace

Replica make_replica(const torch::nn::Module& module,
                     const StateLayout& layout,
                     size_t index,
                     ReplicaSpec spec,
                     const MakeModule& make,
                     KnownTensors& known) {
  // A first forward may run in inference mode, a later one with gradients.
  const c10::InferenceMode no_inference(false);
  const torch::NoGradGuard no_grad;
  Replica replica{
      index, spec, copy_of(module, spec.device, make), {}, {}, {}, {}, {}};
  const auto copy = read_state(*replica.module);
  expect_structure(module, read_state(module), copy);
  replica.members = members_of(module, layout, copy, known);
  replica.submodules = pair_submodules(module, *replica.module);
  replica.versions.resize(layout.slots.size());
  allocate(replica, layout);
  for (auto& member : replica.members) {
    // Its gradient goes the way that connect_gradients lays.
    member.tensor.unsafeGetTensorImpl()->set_requires_grad(false);
    member.tensor.set_data(replica.pieces[member.slot]);
  }
  return replica;
}

void claim_memory(Replica& replica) {
  for (auto& member : replica.members) {
    const auto& piece = replica.pieces[member.slot];
    if (!has_memory_of(member.tensor, piece)) {
      member.tensor.set_data(piece);
    }
  }
}

void follow_versions(Replica& replica, const StateLayout& layout) {
  for (const auto& member : replica.members) {
    const auto version = version_of(layout.slots[member.slot].source);
    if (version != replica.versions[member.slot]) {
      torch::autograd::impl::bump_version(member.tensor);
    }
  }
  for (size_t slot = 0; slot < layout.slots.size(); ++slot) {
    replica.versions[slot] = version_of(layout.slots[slot].source);
  }
}

void follow_modes(const Replica& replica) {
  for (const auto& [own, copy] : replica.submodules) {
    if (copy->is_training() != own->is_training()) {
      copy->train(own->is_training());
    }
  }
}

}  // namespace dp::detail
