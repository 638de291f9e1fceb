#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// Second base class of the memory of the leaves of a
/// `FullyShardedDataParallel`: each leaf is this rank's part of a parameter, so
/// the ranks' leaves of one parameter differ.
class ShardStorage {
 public:
  virtual ~ShardStorage() = default;
};

/// Returns null for any tensor that is not a leaf of a
/// `FullyShardedDataParallel`.
inline ShardStorage* shard_storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage()
             ? dynamic_cast<ShardStorage*>(
                   tensor.storage().unsafeGetStorageImpl())
             : nullptr;
}

/// Marks an optimizer's leaves as changed, so that other ranks do not wait for
/// a step that the program leaves out.
inline void note_step(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& leaf : group.params()) {
      if (shard_storage_of(leaf) != nullptr) {
        leaf.unsafeGetTensorImpl()->bump_version();
      }
    }
  }
}

/// Throws a c10::Error for a leaf, because an object of class `user` expects
/// the same tensors on all ranks.
inline void refuse_shard(const at::Tensor& tensor, const char* user) {
  TORCH_CHECK(shard_storage_of(tensor) == nullptr,
              "Expected parameters that all ranks have alike for ",
              user,
              ", but got those of a FullyShardedDataParallel, of which each "
              "rank has a part");
}

}  // namespace ddp::detail
