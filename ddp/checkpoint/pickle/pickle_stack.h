#pragma once

#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

inline constexpr const char* kDamagedPickle = "its pickle is damaged";

/// The stack of a pickle machine. Values below the last mark are inaccessible;
/// an access throws c10::Error.
class PickleStack {
 public:
  void push(c10::IValue value) { values_.push_back(std::move(value)); }

  void mark() { marks_.push_back(values_.size()); }

  const c10::IValue& top() const {
    TORCH_CHECK(depth() > 0, kDamagedPickle);
    return values_.back();
  }

  c10::IValue pop() { return std::move(pop_last(1)[0]); }

  /// Removes and returns the last `count` values, oldest first.
  std::vector<c10::IValue> pop_last(size_t count) {
    TORCH_CHECK(depth() >= count, kDamagedPickle);
    const auto first = values_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<c10::IValue> items(first, values_.end());
    values_.erase(first, values_.end());
    return items;
  }

  /// Removes the last mark and the values above it, and returns the values.
  std::vector<c10::IValue> pop_to_mark() {
    TORCH_CHECK(!marks_.empty(), kDamagedPickle);
    auto items = pop_last(depth());
    marks_.pop_back();
    return items;
  }

 private:
  size_t depth() const {
    return values_.size() - (marks_.empty() ? 0 : marks_.back());
  }

  std::vector<c10::IValue> values_;
  std::vector<size_t> marks_;
};

}  // namespace ddp::detail
