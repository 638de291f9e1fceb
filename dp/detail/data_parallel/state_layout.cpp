#include "dp/detail/data_parallel/state_layout.h"

#include <numeric>
#include <unordered_map>

#include <c10/util/strides.h>

#include "ddp/detail/reducer/bucket_plan.h"

namespace dp::detail {
namespace {

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

void place_slots(StateLayout& layout, int64_t cap_bytes) {
  std::vector<ddp::detail::GradientSpec> specs;
  for (const auto& slot : layout.slots) {
    ddp::detail::GradientSpec spec;
    spec.numel = slot.source.numel();
    spec.dtype = slot.dtype;
    specs.push_back(spec);
  }
  std::vector<size_t> order(specs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  ddp::detail::BucketCaps caps;
  caps.first_bytes = cap_bytes;
  caps.bytes = cap_bytes;
  for (const auto& members : ddp::detail::plan_buckets(specs, order, caps)) {
    FlatSpec flat{layout.slots[members.front()].dtype, 0};
    for (const size_t member : members) {
      layout.slots[member].flat = layout.flats.size();
      layout.slots[member].offset = flat.numel;
      flat.numel += specs[member].numel;
    }
    layout.flats.push_back(flat);
  }
}

}  // namespace

NamedState read_state(const torch::nn::Module& module) {
  NamedState state;
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      state.names.push_back(item.key());
      state.tensors.push_back(item.value());
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return state;
}

int64_t StateLayout::bytes() const {
  int64_t bytes = 0;
  for (const auto& flat : flats) {
    bytes += flat.numel * static_cast<int64_t>(c10::elementSize(flat.dtype));
  }
  return bytes;
}

StateLayout lay_out(const NamedState& state, int64_t cap_bytes) {
  StateLayout layout;
  std::unordered_map<const c10::TensorImpl*, size_t> known;
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const auto& tensor = state.tensors[i];
    const auto [place, is_new] =
        known.try_emplace(tensor.unsafeGetTensorImpl(), layout.slots.size());
    if (is_new) {
      layout.slots.push_back(make_slot(state.names[i], tensor));
    }
    layout.slot_of.push_back(place->second);
  }
  place_slots(layout, cap_bytes);
  return layout;
}

bool fits(const StateLayout& layout, const NamedState& state) {
  if (layout.slot_of.size() != state.tensors.size()) {
    return false;
  }
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    if (!is_unchanged(layout.slots[layout.slot_of[i]], state.tensors[i])) {
      return false;
    }
  }
  return true;
}

void expect_on_device(const NamedState& state, c10::Device device) {
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    TORCH_CHECK(state.tensors[i].device() == device,
                "Expected the module to have its parameters and buffers on ",
                device,
                ", the first of its devices, but got ",
                state.names[i],
                " on ",
                state.tensors[i].device(),
                "; call to(device) on the module");
  }
}

}  // namespace dp::detail
