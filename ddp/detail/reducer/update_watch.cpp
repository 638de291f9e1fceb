#include "ddp/detail/reducer/update_watch.h"

#include <algorithm>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ddp/detail/piece_of.h"

namespace ddp::detail {
namespace {

constexpr size_t kTensors = 16;
constexpr int64_t kElements = 4;  // of each
constexpr int64_t kBytes = 16;    // of each on a GPU, or one element

bool is_watchable(const at::Tensor& tensor) {
  return tensor.numel() > 0 && tensor.is_non_overlapping_and_dense();
}

std::vector<at::Tensor> spread_over(const std::vector<at::Tensor>& all) {
  const bool any_cpu = std::any_of(
      all.begin(), all.end(), [](const auto& t) { return t.is_cpu(); });
  const auto device =
      any_cpu || all.empty() ? c10::Device(c10::kCPU) : all.front().device();
  std::vector<at::Tensor> some;
  const size_t stride = (all.size() + kTensors - 1) / kTensors;
  for (size_t i = 0; i < all.size(); i += stride) {
    if (all[i].device() == device && is_watchable(all[i])) {
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

/// Some bytes in its middle, as a tensor of bytes.
at::Tensor middle_of(const at::Tensor& tensor) {
  const auto size = static_cast<int64_t>(tensor.element_size());
  const int64_t count =
      std::min(tensor.numel(), std::max<int64_t>(1, kBytes / size));
  const int64_t begin = tensor.storage_offset() + (tensor.numel() - count) / 2;
  auto bytes =
      at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false));
  return bytes.set_(tensor.storage(), begin * size, {count * size}, {1});
}

}  // namespace

UpdateWatch::UpdateWatch(const std::vector<at::Tensor>& parameters)
    : watched_(spread_over(parameters)) {
  if (watched_.empty() || watched_.front().is_cpu()) {
    return;
  }
  int64_t size = 0;
  for (const auto& tensor : watched_) {
    pieces_.push_back(middle_of(tensor));
    size += pieces_.back().numel();
  }
  gathered_ = at::zeros({size}, pieces_.front().options());
  int64_t offset = 0;
  for (const auto& piece : pieces_) {
    places_.push_back(piece_of(gathered_, offset, piece.sizes(), {1}));
    offset += piece.numel();
  }
}

std::optional<int64_t> UpdateWatch::begin_pass() {
  if (!pieces_.empty()) {
    ++passes_;
    compare_arrived();
    return count_before_lag();
  }
  now_.clear();
  for (const auto& tensor : watched_) {
    append_values(tensor, now_);
  }
  compare();
  return without_change_;
}

void UpdateWatch::end_pass() {
  if (!pieces_.empty()) {
    at::_foreach_copy_(places_, pieces_);
    reads_.read(gathered_);
  }
}

void UpdateWatch::compare() {
  if (!values_.empty() && now_ == values_) {
    ++without_change_;
  }
  values_.swap(now_);
}

void UpdateWatch::compare_arrived() {
  while (const auto bytes = reads_.take()) {
    const auto* memory = static_cast<const char*>(bytes->const_data_ptr());
    now_.assign(memory, memory + bytes->numel());
    compare();
    counts_.push_back(without_change_);
  }
}

std::optional<int64_t> UpdateWatch::count_before_lag() {
  const int64_t wanted = passes_ - 1 - kLag;
  while (!counts_.empty() && forgotten_ < wanted) {
    counts_.pop_front();
    ++forgotten_;
  }
  if (counts_.empty() || forgotten_ != wanted) {
    return std::nullopt;
  }
  return counts_.front();
}

}  // namespace ddp::detail
