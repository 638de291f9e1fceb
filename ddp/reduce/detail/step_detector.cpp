#include "ddp/reduce/detail/step_detector.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <c10/util/hash.h>

namespace ddp::detail {
namespace {

constexpr size_t kTensors = 16;
constexpr size_t kElements = 4;  // of each

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

}  // namespace

size_t hash_elements(const at::Tensor& tensor, size_t count) {
  if (!is_comparable(tensor)) {
    return 0;
  }
  const size_t numel = tensor.numel();
  const size_t size = tensor.element_size();
  const auto* memory = static_cast<const char*>(tensor.const_data_ptr());
  count = std::min(count, numel);
  size_t hash = 0;
  for (size_t i = 0; i < count; ++i) {
    std::array<uint64_t, 2> bits{};  // as large as the largest element
    std::memcpy(bits.data(), memory + numel * i / count * size, size);
    hash = c10::hash_combine(c10::hash_combine(hash, bits[0]), bits[1]);
  }
  return hash;
}

StepDetector::StepDetector(const std::vector<at::Tensor>& parameters)
    : compared_(sample_of(parameters)) {}

std::optional<int64_t> StepDetector::count_passes_without_step() {
  if (compared_.empty()) {
    return std::nullopt;
  }
  size_t hash = 0;
  for (const auto& tensor : compared_) {
    hash = c10::hash_combine(hash, hash_elements(tensor, kElements));
  }
  if (hash_ == hash) {
    ++without_step_;
  }
  hash_ = hash;
  return without_step_;
}

}  // namespace ddp::detail
