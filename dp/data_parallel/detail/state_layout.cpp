#include "dp/data_parallel/detail/state_layout.h"

#include <numeric>
#include <unordered_map>

#include <c10/util/strides.h>

#include "ddp/reduce/bucket_plan.h"

namespace dp::detail {
namespace {

/// Number of bytes sent together. The transfer takes far longer than the start
/// of a copy between devices, and the memory is small compared to that of a
/// device.
constexpr int64_t kBytesSentTogether = 16 << 20;

c10::DimVector dense_strides(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense()
             ? c10::DimVector(tensor.strides())
             : c10::contiguous_strides(tensor.sizes());
}

Slot make_slot(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == c10::kStrided && !tensor.is_quantized(),
              "Expected dense parameters and buffers, but got ",
              name,
              " with layout ",
              tensor.layout(),
              "; keep it out of the module, or make it dense");
  return {tensor,
          name,
          tensor.scalar_type(),
          c10::DimVector(tensor.sizes()),
          dense_strides(tensor),
          0,
          0};
}

bool is_unchanged(const Slot& slot, const at::Tensor& tensor) {
  return slot.source.is_same(tensor) && slot.dtype == tensor.scalar_type() &&
         tensor.sizes() == slot.sizes && dense_strides(tensor) == slot.strides;
}

/// A tensor of at least `kBytesSentTogether` bytes is alone in its flat tensor,
/// because sending it together with others needs staging memory for all of
/// them.
void place_slots(StateLayout& layout) {
  std::vector<ddp::detail::GradientSpec> specs;
  for (const auto& slot : layout.slots) {
    const int64_t numel = slot.source.numel();
    const auto size = static_cast<int64_t>(c10::elementSize(slot.dtype));
    const bool is_alone = numel * size >= kBytesSentTogether;
    specs.push_back({numel, slot.dtype, layout.device, is_alone});
  }
  std::vector<size_t> order(specs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (auto& members : ddp::detail::plan_buckets(
           specs, order, {kBytesSentTogether, kBytesSentTogether})) {
    FlatSpec flat{layout.slots[members.front()].dtype, 0, std::move(members)};
    for (const size_t member : flat.slots) {
      layout.slots[member].flat = layout.flats.size();
      layout.slots[member].offset = flat.numel;
      flat.numel += specs[member].numel;
    }
    layout.bytes +=
        flat.numel * static_cast<int64_t>(c10::elementSize(flat.dtype));
    layout.flats.push_back(std::move(flat));
  }
}

}  // namespace

ModuleState read_state(const std::shared_ptr<torch::nn::Module>& module) {
  ModuleState state{module->modules(), {}};
  for (const auto& part : state.modules) {
    for (const auto& named : {part->named_parameters(/*recurse=*/false),
                              part->named_buffers(/*recurse=*/false)}) {
      for (const auto& item : named) {
        state.tensors.push_back(item.value());
      }
    }
  }
  return state;
}

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& part : module.named_modules()) {
    const auto prefix = part.key().empty() ? "" : part.key() + ".";
    for (const auto& named : {part.value()->named_parameters(/*recurse=*/false),
                              part.value()->named_buffers(/*recurse=*/false)}) {
      for (const auto& item : named) {
        names.push_back(prefix + item.key());
      }
    }
  }
  return names;
}

StateLayout lay_out(const ModuleState& state, c10::Device device) {
  StateLayout layout;
  layout.device = device;
  layout.modules = state.modules;
  const auto names = names_of(*state.modules.front());
  std::unordered_map<const c10::TensorImpl*, size_t> known;
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const auto& tensor = state.tensors[i];
    const auto [place, is_new] =
        known.try_emplace(tensor.unsafeGetTensorImpl(), layout.slots.size());
    if (is_new) {
      layout.slots.push_back(make_slot(names[i], tensor));
    }
    layout.slot_of.push_back(place->second);
  }
  place_slots(layout);
  return layout;
}

bool fits(const StateLayout& layout, const ModuleState& state) {
  if (layout.modules != state.modules ||
      layout.slot_of.size() != state.tensors.size()) {
    return false;
  }
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    if (!is_unchanged(layout.slots[layout.slot_of[i]], state.tensors[i])) {
      return false;
    }
  }
  return true;
}

void expect_on_device(const ModuleState& state, c10::Device device) {
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    TORCH_CHECK(state.tensors[i].device() == device,
                "Expected the module to have its parameters and buffers on ",
                device,
                ", the first of its devices, but got ",
                names_of(*state.modules.front())[i],
                " on ",
                state.tensors[i].device(),
                "; call to(device) on the module");
  }
}

}  // namespace dp::detail
