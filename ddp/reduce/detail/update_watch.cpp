#include "ddp/reduce/detail/update_watch.h"

#include <algorithm>
#include <utility>

namespace ddp::detail {
namespace {

constexpr size_t kTensors = 16;
constexpr int64_t kElements = 4;  // of each

bool is_watchable(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.numel() > 0 &&
         tensor.is_non_overlapping_and_dense();
}

std::vector<at::Tensor> spread_over(const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> some;
  const size_t stride = (all.size() + kTensors - 1) / kTensors;
  for (size_t i = 0; i < all.size(); i += stride) {
    if (is_watchable(all[i])) {
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

UpdateWatch::UpdateWatch(const std::vector<at::Tensor>& parameters)
    : watched_(spread_over(parameters)) {}

std::optional<int64_t> UpdateWatch::begin_pass() {
  if (watched_.empty()) {
    return std::nullopt;
  }
  Values now;
  now.reserve(values_.size());
  for (const auto& tensor : watched_) {
    append_values(tensor, now);
  }
  if (!values_.empty() && now == values_) {
    ++without_change_;
  }
  values_ = std::move(now);
  return without_change_;
}

}  // namespace ddp::detail
