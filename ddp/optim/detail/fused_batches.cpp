#include "ddp/optim/detail/fused_batches.h"

#include <algorithm>

namespace ddp::detail {
namespace {

/// Returns true if a fused kernel supports the parameter's dtype and device. On
/// the CPU half types use LibTorch's operators: the fused SGD kernel leaves
/// half parameters unchanged.
bool has_kernel(const at::Tensor& param) {
  const auto dtype = param.scalar_type();
  const bool is_wide = dtype == c10::kFloat || dtype == c10::kDouble;
  const bool is_half = dtype == c10::kHalf || dtype == c10::kBFloat16;
  return (param.is_cpu() && is_wide) ||
         (param.is_cuda() && (is_wide || is_half));
}

}  // namespace

FusedBatch& FusedBatches::of(const at::Tensor& param, int64_t step) {
  const auto device = param.device();
  const auto dtype = param.scalar_type();
  const auto found = std::find_if(begin(), end(), [&](const auto& batch) {
    return batch.step == step && batch.dtype == dtype && batch.device == device;
  });
  if (found != end()) {
    return *found;
  }
  if (count_ == batches_.size()) {
    batches_.push_back({device, dtype, step, {}, {}, {}});
  }
  FusedBatch& batch = batches_[count_++];
  batch.device = device;
  batch.dtype = dtype;
  batch.step = step;
  return batch;
}

void FusedBatches::clear() {
  for (auto& batch : *this) {
    batch.params.clear();
    batch.grads.clear();
    for (auto& state : batch.states) {
      state.clear();
    }
  }
  count_ = 0;
}

bool has_same_layout(const at::Tensor& other, const at::Tensor& param) {
  return other.defined() && other.layout() == c10::kStrided &&
         other.scalar_type() == param.scalar_type() &&
         other.device() == param.device() &&
         other.sizes().equals(param.sizes()) &&
         ((other.is_contiguous() && param.is_contiguous()) ||
          other.strides().equals(param.strides()));
}

bool is_fusible(const at::Tensor& param, const at::Tensor& grad) {
  return has_kernel(param) && param.layout() == c10::kStrided &&
         param.is_non_overlapping_and_dense() && has_same_layout(grad, param);
}

}  // namespace ddp::detail
