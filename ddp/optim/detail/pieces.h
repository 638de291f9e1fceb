#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// The part of a parameter that one rank's optimizer steps.
struct ParameterShard {
  at::Tensor param;
  size_t index;   ///< of the parameter in its group
  int64_t first;  ///< first element, in memory order
  int owner;
  /// The parameter itself, or a one-dimensional tensor over a run of its
  /// memory. Shares the parameter's version counter.
  at::Tensor part;
};

/// Returns true if the shard is the whole parameter.
bool is_whole(const ParameterShard& piece);

/// Assigns whole parameters to ranks by `partition_whole`.
/// @param elements  number of elements each rank has already; increased.
std::vector<ParameterShard> whole_pieces(const std::vector<at::Tensor>& params,
                                         std::vector<int64_t>& elements);

/// Cuts the parameters of each dtype by `partition_evenly`.
/// @param elements  number of elements each rank has already; increased.
/// @throws c10::Error for a parameter with gaps in its memory.
std::vector<ParameterShard> even_pieces(const std::vector<at::Tensor>& params,
                                        std::vector<int64_t>& elements);

/// Returns the owner of each parameter's first element.
std::vector<int> first_owners(const std::vector<ParameterShard>& pieces);

/// Returns a one-dimensional tensor over `numel` elements of the memory of
/// `dense`, from element `first` in memory order.
at::Tensor flat_range(const at::Tensor& dense, int64_t first, int64_t numel);

/// Returns `tensor`, or a copy of it, with its elements in the memory order of
/// `param`. Both have the same sizes.
at::Tensor in_layout_of(const at::Tensor& tensor, const at::Tensor& param);

/// Updates the parts of parameters whose memory has changed.
/// @throws c10::Error for a parameter whose dtype, device or size has changed.
void update_shards(const std::vector<std::vector<ParameterShard>>& groups);

/// @throws c10::Error, with the parameter's group and index, for a sparse
///   gradient of a cut parameter. Throws alike on every rank if the gradients
///   are the same.
void check_gradients(const std::vector<std::vector<ParameterShard>>& groups);

/// Sets the gradients of a rank's parts during its lifetime. The destructor
/// releases them, because DistributedDataParallel detects references to its
/// gradients.
class ShardGradients {
 public:
  ShardGradients(const std::vector<std::vector<ParameterShard>>& groups,
                 int rank);
  ~ShardGradients();
  ShardGradients(const ShardGradients&) = delete;
  ShardGradients& operator=(const ShardGradients&) = delete;

 private:
  std::vector<at::Tensor> parts_;
};

}  // namespace ddp::detail
