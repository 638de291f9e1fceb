#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace ddp::detail {

/// Parameters that one call of a fused kernel steps, with what it needs of
/// each.
struct FusedBatch {
  c10::Device device;
  c10::ScalarType dtype;
  int64_t step;  ///< that this is for them
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> grads;
  std::array<std::vector<at::Tensor>, 3> states;
};

/// The batches of an optimizer's step. The lists keep their memory from step to
/// step, but no tensor: a gradient that zero_grad() lets go must be free.
class FusedBatches {
 public:
  /// The batch that takes `param`; in a step most ask for the same one.
  FusedBatch& of(const at::Tensor& param, int64_t step);

  /// Those that have been asked for since `clear`.
  FusedBatch* begin() { return batches_.data(); }
  FusedBatch* end() { return batches_.data() + count_; }

  void clear();

 private:
  std::vector<FusedBatch> batches_;
  size_t count_ = 0;
};

/// Whether the kernels step such a parameter with such a gradient. They walk
/// through the memory of both, whatever the strides.
bool is_fusible(const at::Tensor& param, const at::Tensor& grad);

/// Whether `other` (a gradient, a state) has the parameter's device, dtype and
/// place in memory for each element.
bool lies_as(const at::Tensor& other, const at::Tensor& param);

}  // namespace ddp::detail
