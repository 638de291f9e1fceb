#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>
#include <torch/nn/module.h>

namespace dp::detail {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

/// A module and all its submodules in depth-first order, and the parameters and
/// buffers of each module in this order. Modules and tensors that are
/// registered several times occur several times.
struct ModuleState {
  Modules modules;
  std::vector<at::Tensor> tensors;
};

ModuleState read_state(const std::shared_ptr<torch::nn::Module>& module);

/// Returns the names of the tensors of `read_state`, in the same order.
std::vector<std::string> names_of(const torch::nn::Module& module);

/// The position of the copy of one module tensor in a replica's memory.
struct Slot {
  at::Tensor source;  ///< the module's tensor
  std::string name;   ///< the first name of the tensor
  c10::ScalarType dtype;
  c10::DimVector sizes;
  c10::DimVector strides;
  size_t flat;     ///< index of the flat tensor
  int64_t offset;  ///< in elements
};

/// Description of a flat tensor of a replica.
struct FlatSpec {
  c10::ScalarType dtype;
  int64_t numel;
  std::vector<size_t> slots;  ///< stored consecutively
};

/// Layout of the module's state in a replica's memory. A tensor that is
/// registered by several names has one slot.
struct StateLayout {
  c10::Device device = c10::kCPU;  ///< device of the module
  Modules modules;  ///< shared ownership of the module and its submodules
  std::vector<Slot> slots;
  std::vector<size_t> slot_of;  ///< by index in ModuleState::tensors
  std::vector<FlatSpec> flats;
  int64_t bytes = 0;  ///< of all flat tensors
};

/// Places tensors of one dtype side by side in flat tensors of about 16 MiB. A
/// tensor of at least that size is alone in its flat tensor.
/// @param device  device of the module
/// @throws c10::Error if a tensor is not dense.
StateLayout lay_out(const ModuleState& state, c10::Device device);

/// Returns true if the module still has the submodules and tensors of the
/// layout, with the same dtypes, sizes and strides.
bool fits(const StateLayout& layout, const ModuleState& state);

/// Checks that all tensors are on `device`.
/// @throws c10::Error that names the first tensor on another device.
void expect_on_device(const ModuleState& state, c10::Device device);

}  // namespace dp::detail
