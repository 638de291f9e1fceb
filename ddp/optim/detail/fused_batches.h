#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  int64_t step;   ///< that this is for them
  bool is_small;  ///< each too small to be shared out among threads
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> grads;
  std::array<std::vector<at::Tensor>, 3> states;
};

/// Parameters `first` to `last - 1` of a batch.
struct FusedPart {
  FusedPart(const FusedBatch& batch, size_t first, size_t last);
  at::TensorList params;
  at::TensorList grads;
  std::array<at::TensorList, 3> states;
};

/// Pure: where to cut a list of parameters, so that as many parts take about as
/// long as each other. The first is 0, the last the length of the list; a part
/// may be empty.
std::vector<size_t> cut_points(const std::vector<at::Tensor>& params,
                               int64_t parts);

/// Calls `step_part` for parts that together are the batch. Those of small
/// parameters are one for each of LibTorch's intra-op threads: the kernels on
/// the CPU take all threads for each parameter, which costs more than to step
/// a small one. Below autograd.
void step_parts(const FusedBatch& batch,
                const std::function<void(const FusedPart&)>& step_part);

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
