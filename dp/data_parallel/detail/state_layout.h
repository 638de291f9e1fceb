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

/// A module and its submodules, each followed by its own, and the parameters
/// and buffers of each in this order: all as often as they are registered.
struct ModuleState {
  Modules modules;
  std::vector<at::Tensor> tensors;
};

ModuleState read_state(const std::shared_ptr<torch::nn::Module>& module);

/// The names of the tensors of `read_state`.
std::vector<std::string> names_of(const torch::nn::Module& module);

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
  std::vector<size_t> slots;  ///< that lie in it, one after the other
};

/// How the module's state lies in a replica's memory. A tensor that the module
/// has by several names has one slot.
struct StateLayout {
  c10::Device device = c10::kCPU;  ///< of the module
  Modules modules;  ///< the module's, which live as long as the layout
  std::vector<Slot> slots;
  std::vector<size_t> slot_of;  ///< by place in the ModuleState
  std::vector<FlatSpec> flats;

  int64_t bytes() const;
};

/// Lays tensors of one dtype side by side in flat tensors of about 16 MiB. A
/// tensor as large as that is alone in its flat one.
/// @param device  of the module
/// @throws c10::Error when a tensor is not dense.
StateLayout lay_out(const ModuleState& state, c10::Device device);

/// Whether the module still has the submodules and tensors that the layout was
/// made for, as they were.
bool fits(const StateLayout& layout, const ModuleState& state);

/// @throws c10::Error that names the first tensor that is on another device.
void expect_on_device(const ModuleState& state, c10::Device device);

}  // namespace dp::detail
