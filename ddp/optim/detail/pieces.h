#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// What one rank's optimizer steps of a parameter.
struct ParameterShard {
  at::Tensor param;
  size_t index;   ///< of the parameter in its group
  int64_t first;  ///< element, in the order in which they lie in memory
  int owner;
  /// The parameter itself, or a tensor of one dimension over a run of its
  /// memory. Shares the parameter's version counter.
  at::Tensor part;
};

/// All of the parameter, as itself.
bool is_whole(const ParameterShard& piece);

/// Gives whole parameters to ranks, by `partition_whole`.
/// @param elements  what each rank has already; is added to.
std::vector<ParameterShard> whole_pieces(const std::vector<at::Tensor>& params,
                                         std::vector<int64_t>& elements);

/// Cuts the parameters of each dtype by `partition_evenly`.
/// @throws c10::Error for a parameter with gaps in its memory.
std::vector<ParameterShard> even_pieces(const std::vector<at::Tensor>& params,
                                        std::vector<int64_t>& elements);

/// The rank of each parameter's first element.
std::vector<int> first_owners(const std::vector<ParameterShard>& pieces);

/// The memory of such a run.
at::Tensor run_of(const at::Tensor& dense, int64_t first, int64_t numel);

/// `tensor`, or a copy of it, with the elements in the order in which they lie
/// in the parameter's memory. Of the same sizes.
at::Tensor laid_as(const at::Tensor& tensor, const at::Tensor& param);

/// Lets the parts follow parameters that have other memory than before.
/// @throws c10::Error for one of another dtype, device or size.
void follow_parameters(const std::vector<std::vector<ParameterShard>>& groups);

/// Throws for a gradient that cannot be cut, with its place. The same on every
/// rank, where the gradients are.
void check_gradients(const std::vector<std::vector<ParameterShard>>& groups);

/// While it lives, a rank's parts have their pieces of the gradients. Nothing
/// holds these afterwards: DistributedDataParallel sees whether somebody does.
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
