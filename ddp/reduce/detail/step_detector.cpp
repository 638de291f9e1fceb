#include "ddp/reduce/detail/step_detector.h"

#include <algorithm>
#include <utility>

namespace ddp::detail {
namespace {

constexpr size_t kTensors = 16;
constexpr int64_t kElements = 4;  // of each

bool is_comparable(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.numel() > 0 &&
         tensor.is_non_overlapping_and_dense();
}

/// A sample of the tensors, spread over all of them.
std::vector<at::Tensor> sample_of(const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> some;
  const size_t stride = (all.size() + kTensors - 1) / kTensors;
  for (size_t i = 0; i < all.size(); i += stride) {
    if (is_comparable(all[i])) {
      some.push_back(all[i]);
    }
  }
  return some;
}

void append_values(const at::Tensor& tensor, std::vector<char>& values) {
  const auto* memory = static_cast<const char*>(tensor.const_data_ptr());
  const size_t size = tensor.element_size();
  const int64_t stride = std::max<int64_t>(1, tensor.numel() / kElements);
  for (int64_t i = 0; i < tensor.numel(); i += stride) {
    values.insert(values.end(), memory + i * size, memory + (i + 1) * size);
  }
}

}  // namespace

StepDetector::StepDetector(const std::vector<at::Tensor>& parameters)
    : compared_(sample_of(parameters)) {}

std::optional<int64_t> StepDetector::count_passes_without_step() {
  if (compared_.empty()) {
    return std::nullopt;
  }
  Values now;
  now.reserve(values_.size());
  for (const auto& tensor : compared_) {
    append_values(tensor, now);
  }
  if (!values_.empty() && now == values_) {
    ++without_step_;
  }
  values_ = std::move(now);
  return without_step_;
}

}  // namespace ddp::detail
