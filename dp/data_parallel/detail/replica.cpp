#include "dp/data_parallel/detail/replica.h"

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include "ddp/job/error_text.h"
#include "ddp/tensors/alias_without_view.h"
#include "ddp/tensors/generator_states.h"

namespace dp::detail {
namespace {

std::shared_ptr<torch::nn::Module> copy_of(const torch::nn::Module& module,
                                           c10::Device device,
                                           const MakeModule& make) {
  const auto copy = ddp::detail::explain(
      "Cannot make a replica of " + module.name() +
          " (derive it from torch::nn::Cloneable, with a reset() that makes "
          "all "
          "of its parts anew, or give DataParallelOptions().make_replica())",
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
                      const StateLayout& layout,
                      const torch::nn::Module& replica,
                      const ModuleState& copy) {
  const auto names = names_of(module);
  const auto others = names_of(replica);
  for (size_t i = 0; i < std::max(names.size(), others.size()); ++i) {
    const auto name = [i](const std::vector<std::string>& of) {
      return i < of.size() ? of[i] : "nothing";
    };
    TORCH_CHECK(name(names) == name(others),
                "Expected a replica with the parameters and buffers of ",
                module.name(),
                ", but got ",
                name(others),
                " where it has ",
                name(names));
  }
  TORCH_CHECK(copy.modules.size() == layout.modules.size(),
              "Expected a replica with the ",
              layout.modules.size() - 1,
              " submodules of ",
              module.name(),
              ", but got ",
              copy.modules.size() - 1);
}

/// Returns the number of owners of each of the module's modules and tensors.
std::vector<size_t> owners_of(const StateLayout& layout) {
  std::vector<size_t> owners;
  for (const auto& part : layout.modules) {
    owners.push_back(static_cast<size_t>(part.use_count()));
  }
  for (const auto& slot : layout.slots) {
    owners.push_back(slot.source.use_count());
  }
  return owners;
}

/// Checks that the replica owns none of the module's modules and tensors, but
/// for modules that are registered in both.
/// @param before  the owners before the replica was made
void expect_not_held(const torch::nn::Module& module,
                     const StateLayout& layout,
                     const ModuleState& copy,
                     const std::vector<size_t>& before) {
  const auto names = module.named_modules().keys();
  const auto now = owners_of(layout);
  for (size_t i = 0; i < now.size(); ++i) {
    const bool is_module = i < names.size();
    TORCH_CHECK(
        now[i] <= before[i] || (is_module && std::count(copy.modules.begin(),
                                                        copy.modules.end(),
                                                        layout.modules[i]) > 0),
        "Expected a replica of ",
        module.name(),
        " with modules and tensors of its own, but one of its members holds ",
        i == 0      ? "the module itself"
        : is_module ? names[i] + " of the module"
                    : layout.slots[i - names.size()].name + " of the module",
        "; assign such members anew in reset() (for example `layers.clear()` "
        "before it fills `layers`), or in make_replica");
  }
}

/// Returns each tensor of the replica once, with its slot.
std::vector<Replica::Member> members_of(const torch::nn::Module& module,
                                        const StateLayout& layout,
                                        const ModuleState& copy,
                                        KnownTensors& known) {
  std::vector<Replica::Member> members;
  std::unordered_map<const c10::TensorImpl*, size_t> own;  // to slot
  for (size_t i = 0; i < copy.tensors.size(); ++i) {
    const auto* tensor = copy.tensors[i].unsafeGetTensorImpl();
    const size_t slot = layout.slot_of[i];
    TORCH_CHECK(known.count(tensor) == 0,
                "Expected a replica of ",
                module.name(),
                " with tensors of its own, but ",
                names_of(module)[i],
                " is that of the module or of another replica; make each anew");
    const auto [place, is_new] = own.try_emplace(tensor, slot);
    TORCH_CHECK(place->second == slot,
                "Expected a replica of ",
                module.name(),
                " with as many tensors as it has, but ",
                names_of(module)[i],
                " and ",
                layout.slots[place->second].name,
                " are two in the module and one in the replica; untie them in "
                "reset(), or in make_replica");
    if (is_new) {
      members.push_back({copy.tensors[i], slot, 0});
    }
  }
  for (const auto& [tensor, slot] : own) {
    known.insert(tensor);
  }
  return members;
}

/// Returns true if the tensor already has the memory layout of its slot and is
/// the only user of its storage, so that the storage can serve as a flat
/// tensor.
bool can_be_flat(const at::Tensor& tensor,
                 const Slot& slot,
                 c10::Device device) {
  return tensor.device() == device && tensor.scalar_type() == slot.dtype &&
         tensor.sizes() == slot.sizes && tensor.strides() == slot.strides &&
         tensor.storage_offset() == 0 && tensor.storage().use_count() == 1 &&
         tensor.storage().nbytes() == tensor.nbytes();
}

at::Tensor make_flat(const FlatSpec& spec,
                     const StateLayout& layout,
                     const std::vector<Replica::Member*>& members,
                     c10::Device device) {
  if (spec.slots.size() == 1 && members.size() == 1 &&
      can_be_flat(members[0]->tensor, layout.slots[spec.slots[0]], device)) {
    return ddp::detail::alias_without_view(
        members[0]->tensor, 0, {spec.numel}, {1});
  }
  return at::empty({spec.numel}, at::TensorOptions(device).dtype(spec.dtype));
}

void move_to_flat_memory(Replica& replica, const StateLayout& layout) {
  std::vector<std::vector<Replica::Member*>> in_flat(layout.flats.size());
  for (auto& member : replica.members) {
    in_flat[layout.slots[member.slot].flat].push_back(&member);
  }
  replica.pieces.resize(layout.slots.size());
  for (size_t flat = 0; flat < layout.flats.size(); ++flat) {
    const auto& spec = layout.flats[flat];
    const auto memory = make_flat(spec, layout, in_flat[flat], replica.device);
    for (const size_t slot : spec.slots) {
      const auto& place = layout.slots[slot];
      replica.pieces[slot] = ddp::detail::alias_without_view(
          memory, place.offset, place.sizes, place.strides);
    }
    for (auto* member : in_flat[flat]) {
      // GradientPath connects the gradient, so the tensor is no leaf that
      // requires one.
      member->tensor.unsafeGetTensorImpl()->set_requires_grad(false);
      member->tensor.set_data(replica.pieces[member->slot]);
    }
    replica.flats.push_back(memory);
  }
}

std::vector<c10::Device> generators_near(c10::Device device) {
  return device.is_cuda() ? std::vector<c10::Device>{c10::kCPU, device}
                          : std::vector<c10::Device>{c10::kCPU};
}

bool has_memory_of(const at::Tensor& tensor, const at::Tensor& piece) {
  return tensor.const_data_ptr() == piece.const_data_ptr() &&
         tensor.sizes() == piece.sizes() && tensor.strides() == piece.strides();
}

}  // namespace

Replica make_replica(const StateLayout& layout,
                     size_t index,
                     c10::Device device,
                     const MakeModule& make,
                     KnownTensors& known) {
  // The first forward may run in inference mode, and a later one with
  // gradients.
  const c10::InferenceMode no_inference(false);
  const torch::NoGradGuard no_grad;
  // clone() runs reset(), which draws random values that are overwritten.
  const ddp::detail::GeneratorGuard random(generators_near(device));
  const auto& module = *layout.modules.front();
  const auto owners = owners_of(layout);
  Replica replica{index, device, copy_of(module, device, make), {}, {}, {}, {}};
  auto copy = read_state(replica.module);
  expect_structure(module, layout, *replica.module, copy);
  replica.members = members_of(module, layout, copy, known);
  expect_not_held(module, layout, copy, owners);
  replica.submodules = std::move(copy.modules);
  move_to_flat_memory(replica, layout);
  return replica;
}

void follow_module(Replica& replica, const StateLayout& layout) {
  for (auto& member : replica.members) {
    const auto& piece = replica.pieces[member.slot];
    if (!has_memory_of(member.tensor, piece)) {
      member.tensor.set_data(piece);
    }
    const auto& source = layout.slots[member.slot].source;
    const auto version = source.is_inference() ? 0 : source._version();
    if (std::exchange(member.version, version) != version) {
      torch::autograd::impl::bump_version(member.tensor);
    }
  }
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    const bool is_training = layout.modules[i]->is_training();
    if (replica.submodules[i]->is_training() != is_training) {
      replica.submodules[i]->train(is_training);
    }
  }
}

}  // namespace dp::detail
