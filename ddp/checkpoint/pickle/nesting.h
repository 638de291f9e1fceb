#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Watches over the containers that a pickle fills. What it gives is at most
/// `kMaxDepth` deep and holds no cycle, so that it can be walked, and freed, by
/// recursion; and filling it takes no longer than reading the file.
///
/// A container that another one holds may not be filled any more: Python
/// finishes each before it goes on, unless one contains itself.
class Nesting {
 public:
  /// As deep as Python's recursion limit lets it save.
  static constexpr int kMaxDepth = 1000;

  /// @param max_items  how many items all containers may hold together.
  explicit Nesting(size_t max_items) : left_(max_items) {}

  /// `container` is filled with `items`: a list, a tuple, or a dict with its
  /// keys and values in turn.
  /// @throws c10::Error when it is too deep, too much, or filled too late.
  void hold(const c10::IValue& container,
            const std::vector<c10::IValue>& items);

 private:
  struct Node {
    c10::IValue container;  // keeps the address from being used again
    int depth = 1;
    bool is_held = false;
  };

  Node& node(const c10::IValue& container);

  std::unordered_map<const void*, Node> nodes_;
  size_t left_;
};

}  // namespace ddp::detail
