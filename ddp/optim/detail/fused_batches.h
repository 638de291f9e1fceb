#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace ddp::detail {

/// Parameters that one call of a fused kernel steps, with their gradients and
/// states.
struct FusedBatch {
  c10::Device device;
  c10::ScalarType dtype;
  int64_t step;  ///< number of this step for all of them
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> grads;
  std::array<std::vector<at::Tensor>, 3> states;
};

/// The batches of an optimizer's step. The lists keep their capacity from step
/// to step, but no tensors: a gradient released by zero_grad() must be freed.
class FusedBatches {
 public:
  /// Returns the batch for `param`; in a step most parameters share one batch.
  FusedBatch& of(const at::Tensor& param, int64_t step);

  /// The batches in use since `clear`.
  FusedBatch* begin() { return batches_.data(); }
  FusedBatch* end() { return batches_.data() + count_; }

  /// Removes all tensors; keeps the capacity.
  void clear();

 private:
  std::vector<FusedBatch> batches_;
  size_t count_ = 0;
};

/// Returns true if the fused kernels support this parameter with this gradient.
/// The kernels walk through the memory of both and ignore the strides.
bool is_fusible(const at::Tensor& param, const at::Tensor& grad);

/// Returns true if `other` (a gradient, a state) has the parameter's device and
/// dtype, and the same memory order of elements.
bool has_same_layout(const at::Tensor& other, const at::Tensor& param);

}  // namespace ddp::detail
