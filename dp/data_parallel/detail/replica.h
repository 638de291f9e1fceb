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

/// A persistent copy of the module. Its parameters and buffers are stored in
/// flat tensors, so that few copies update them.
struct Replica {
  /// A parameter or buffer of the replica. A tensor registered several times
  /// occurs once.
  struct Member {
    at::Tensor tensor;
    size_t slot;
    uint32_t version = 0;  ///< of the slot's source at the last update
  };

  size_t index;  ///< in the list of devices
  c10::Device device;
  std::shared_ptr<torch::nn::Module> module;
  Modules submodules;  ///< in the order of the layout's modules
  std::vector<Member> members;
  std::vector<at::Tensor> flats;  ///< by FlatSpec
  /// By slot, aliases of the flats' memory; a write to a piece does not change
  /// the version counters of the members.
  std::vector<at::Tensor> pieces;
};

/// Clones the module of the layout, or calls `make` if it is set. Moves
/// parameters and buffers into flat tensors on `device`, one flat tensor at a
/// time, so that only one part of the state exists twice at any time. Does not
/// copy the module's values. Restores the default random generators after the
/// clone.
///
/// @param known  tensors of the module and of the other replicas. The new
///   replica's tensors are added.
/// @throws c10::Error if the module cannot be cloned, or if the new module has
///   another type, other parameters, buffers or submodules, one of the known
///   tensors, one tensor where the module has two, or members that hold modules
///   or tensors of the module.
Replica make_replica(const StateLayout& layout,
                     size_t index,
                     c10::Device device,
                     const MakeModule& make,
                     KnownTensors& known);

/// Updates all of a replica but the values of its flat tensors:
/// - moves members back to their pieces, from which for example
///   flatten_parameters() of an RNN has taken them;
/// - increments the version counter of each member if its source has changed
///   since the last call. A backward pass of an earlier forward then throws as
///   it does for the module, instead of computing with the new values;
/// - sets each submodule to the training mode of the module's submodule.
void follow_module(Replica& replica, const StateLayout& layout);

}  // namespace dp::detail
