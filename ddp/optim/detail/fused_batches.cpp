#include "ddp/optim/detail/fused_batches.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "ddp/optim/detail/intraop_threads.h"

namespace ddp::detail {
namespace {

/// Cost of one more parameter in a call, in elements.
constexpr int64_t kElementsOfCall = 1024;

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

/// Returns true if LibTorch's operators use a single thread for the parameter.
bool is_small(const at::Tensor& param) {
  return param.is_cpu() && param.numel() < at::internal::GRAIN_SIZE;
}

}  // namespace

FusedPart::FusedPart(const FusedBatch& batch, size_t first, size_t last) {
  const auto cut = [&](const std::vector<at::Tensor>& list) {
    return list.empty() ? at::TensorList()
                        : at::TensorList(list).slice(first, last - first);
  };
  params = cut(batch.params);
  grads = cut(batch.grads);
  for (size_t i = 0; i < states.size(); ++i) {
    states[i] = cut(batch.states[i]);
  }
}

std::vector<size_t> cut_points(const std::vector<at::Tensor>& params,
                               int64_t parts) {
  int64_t total = 0;
  for (const auto& param : params) {
    total += param.numel() + kElementsOfCall;
  }
  std::vector<size_t> points{0};
  int64_t before = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto next = static_cast<int64_t>(points.size());
    if (next < parts && before >= total / parts * next) {
      points.push_back(i);
    }
    before += params[i].numel() + kElementsOfCall;
  }
  points.resize(static_cast<size_t>(parts) + 1, params.size());
  return points;
}

void step_parts(const FusedBatch& batch,
                const std::function<void(const FusedPart&)>& step_part) {
  const auto parts = std::min(static_cast<int64_t>(batch.params.size()),
                              int64_t{at::get_num_threads()});
  if (!batch.is_small || parts < 2) {
    step_part(FusedPart(batch, 0, batch.params.size()));
    return;
  }
  const auto points = cut_points(batch.params, parts);
  in_intraop_threads(parts, [&](int64_t task) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const auto first = points[static_cast<size_t>(task)];
    const auto last = points[static_cast<size_t>(task) + 1];
    if (first < last) {
      step_part(FusedPart(batch, first, last));
    }
  });
}

FusedBatch& FusedBatches::of(const at::Tensor& param, int64_t step) {
  const auto device = param.device();
  const auto dtype = param.scalar_type();
  const bool small = is_small(param);
  const auto found = std::find_if(begin(), end(), [&](const auto& batch) {
    return batch.step == step && batch.dtype == dtype &&
           batch.device == device && batch.is_small == small;
  });
  if (found != end()) {
    return *found;
  }
  if (count_ == batches_.size()) {
    batches_.push_back({device, dtype, step, small, {}, {}, {}});
  }
  FusedBatch& batch = batches_[count_++];
  batch.device = device;
  batch.dtype = dtype;
  batch.step = step;
  batch.is_small = small;
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
