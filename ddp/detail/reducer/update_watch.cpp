#include "ddp/detail/reducer/update_watch.h"

#include <algorithm>
#include <cstring>

namespace ddp::detail {
namespace {

constexpr size_t kTensors = 16;
constexpr int64_t kElements = 4;  // of each

std::vector<at::Tensor> spread_over(const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> some;
  const size_t stride = (all.size() + kTensors - 1) / kTensors;
  for (size_t i = 0; i < all.size(); i += stride) {
    if (all[i].is_cpu() && all[i].numel() > 0 &&
        all[i].is_non_overlapping_and_dense()) {
      some.push_back(all[i]);
    }
  }
  return some;
}

void append_values(const at::Tensor& tensor, std::vector<uint64_t>& values) {
  const auto* memory = static_cast<const char*>(tensor.const_data_ptr());
  const size_t size = tensor.element_size();
  const int64_t stride = std::max<int64_t>(1, tensor.numel() / kElements);
  for (int64_t i = 0; i < tensor.numel(); i += stride) {
    uint64_t bits = 0;
    std::memcpy(&bits, memory + i * size, std::min(size, sizeof(bits)));
    values.push_back(bits);
  }
}

}  // namespace

UpdateWatch::UpdateWatch(const std::vector<at::Tensor>& parameters)
    : watched_(spread_over(parameters)) {}

int64_t UpdateWatch::begin_pass() {
  now_.clear();
  for (const auto& tensor : watched_) {
    append_values(tensor, now_);
  }
  if (!values_.empty() && now_ == values_) {
    ++without_change_;
  }
  values_.swap(now_);
  return without_change_;
}

}  // namespace ddp::detail
