#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dp::detail {

/// The parameters of a server's shard, or their gradients, in one flat tensor
/// in CPU memory, so that one message carries them all.
class ShardMessage {
 public:
  /// Creates contiguous zeros with the shapes and dtypes of `like`.
  explicit ShardMessage(const std::vector<at::Tensor>& like);

  /// The memory of the numbers and tensors: uint8, one dimension.
  const at::Tensor& flat() const { return flat_; }
  /// Tensors that share the flat tensor's memory, but that autograd does not
  /// treat as views, so an optimizer may update them.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// Size of the tensors in bytes, without padding.
  int64_t bytes() const { return bytes_; }

  /// Of parameters: the number of updates that they contain.
  double& version() const { return numbers_[0]; }
  /// Of gradients: the worker's loss.
  double& loss() const { return numbers_[0]; }
  /// Of gradients: 1 if the parameter has one, otherwise 0.
  double& is_present(size_t parameter) const { return numbers_[1 + parameter]; }

 private:
  at::Tensor flat_;
  double* numbers_ = nullptr;  // in the flat tensor
  std::vector<at::Tensor> tensors_;
  int64_t bytes_ = 0;
};

/// Copies each tensor of `from` to the tensor of `to` at the same index,
/// without autograd.
void copy_all(const std::vector<at::Tensor>& from,
              const std::vector<at::Tensor>& to);

/// Copies the `.grad`s of parameters to `message`; sparse gradients become
/// dense. Leaves the tensor of a parameter without a gradient unchanged.
void copy_gradients(const std::vector<at::Tensor>& parameters,
                    const ShardMessage& message);

/// Multiplies the gradients of `term` by `share`, in place.
void scale_gradients(const ShardMessage& term, double share);

/// Adds the gradients and the loss of `term` to `sum`.
void add_gradients(const ShardMessage& term, const ShardMessage& sum);

}  // namespace dp::detail
