#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>
#include <torch/nn/module.h>

namespace dp::detail {

/// Every parameter and then every buffer of a module, by every name it has.
struct NamedState {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

NamedState read_state(const torch::nn::Module& module);

/// Where a tensor of the module has its copy in a replica's memory.
struct Slot {
  at::Tensor source;  ///< the module's
  std::string name;   ///< its first
  c10::ScalarType dtype;
  c10::DimVector sizes;
  c10::DimVector strides;
  size_t flat;     ///< index of a flat tensor
  int64_t offset;  ///< in elements
};

/// A flat tensor that a replica keeps.
struct FlatSpec {
  c10::ScalarType dtype;
  int64_t numel;
};

/// How the module's state lies in a replica's memory. A tensor that the module
/// has by several names has one slot.
struct StateLayout {
  std::vector<Slot> slots;
  std::vector<size_t> slot_of;  ///< by place in the NamedState
  std::vector<FlatSpec> flats;

  int64_t bytes() const;
};

/// Lays tensors of one dtype side by side in flat tensors, which are closed
/// when they have reached `cap_bytes`.
/// @throws c10::Error when a tensor is not dense.
StateLayout lay_out(const NamedState& state, int64_t cap_bytes);

/// Whether the module still has the tensors that the layout was made for, as
/// they were.
bool fits(const StateLayout& layout, const NamedState& state);

/// @throws c10::Error that names the first tensor that is on another device.
void expect_on_device(const NamedState& state, c10::Device device);

}  // namespace dp::detail
