#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "dp/data_parallel/detail/state_layout.h"

namespace dp::detail {

using KnownTensors = std::unordered_set<const c10::TensorImpl*>;
using MakeModule = std::function<std::shared_ptr<torch::nn::Module>()>;

/// A copy of the module that is kept. Its parameters and buffers lie in flat
/// tensors of ours, so that they are filled by few copies.
struct Replica {
  /// A parameter or buffer of the replica, once for each tensor.
  struct Member {
    at::Tensor tensor;
    size_t slot;
  };

  size_t index;  ///< in the list of devices
  c10::Device device;
  std::shared_ptr<torch::nn::Module> module;
  Modules submodules;  ///< of the layout's modules
  std::vector<Member> members;
  std::vector<at::Tensor> flats;   ///< by FlatSpec
  std::vector<at::Tensor> pieces;  ///< by slot, memory of the flats; writing
                                   ///< to them leaves the members' versions
  std::vector<uint32_t> versions;  ///< of the sources, by slot, as last seen
};

/// Clones the module of the layout, or takes what `make` gives, and moves its
/// parameters and buffers into memory on `device`, one flat tensor after the
/// other, so that they are there twice only by parts. Values are not copied
/// yet. Default random generators stay as they are, whatever the clone draws.
///
/// @param known  tensors of the module and of other replicas; grows by its own.
/// @throws c10::Error when the module cannot be cloned, and when what came of
///   it is of another type, has other parameters, buffers or submodules, one of
///   the known tensors, or one tensor where the module has two.
Replica make_replica(const StateLayout& layout,
                     size_t index,
                     c10::Device device,
                     const MakeModule& make,
                     KnownTensors& known);

/// Gives members their memory back when something has moved them elsewhere, as
/// flatten_parameters() of RNNs does.
void claim_memory(Replica& replica);

/// Sets the version of each member whose source has another version than last
/// time, so that autograd sees a change where it would see one in the module,
/// and none where it would not.
void follow_versions(Replica& replica, const StateLayout& layout);

/// Puts each submodule into training or evaluation mode as the module's is.
void follow_modes(const Replica& replica, const StateLayout& layout);

}  // namespace dp::detail
