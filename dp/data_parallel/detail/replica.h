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
  /// Version counters of the sources, by slot, at the last update.
  std::vector<uint32_t> versions;
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
///   tensors, or one tensor where the module has two.
Replica make_replica(const StateLayout& layout,
                     size_t index,
                     c10::Device device,
                     const MakeModule& make,
                     KnownTensors& known);

/// Restores the memory of members that were moved elsewhere, for example by
/// flatten_parameters() of RNNs.
void restore_memory(Replica& replica);

/// Increments the version counter of each member whose source has changed since
/// the last call. Autograd then detects a modification exactly where it would
/// detect one in the module.
void follow_versions(Replica& replica, const StateLayout& layout);

/// Sets each submodule to the training or evaluation mode of the module's
/// submodule.
void follow_modes(const Replica& replica, const StateLayout& layout);

}  // namespace dp::detail
