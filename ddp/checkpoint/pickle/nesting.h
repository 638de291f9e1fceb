#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Limits the containers that a pickle fills. The result is at most `kMaxDepth`
/// levels deep and has no cycles, so that recursive functions can walk and free
/// it. The number of items is limited too, and the length of keys, so that
/// filling takes no longer than reading the file.
///
/// A container that is already an item of another container may not be filled
/// any more: Python completes each container first, unless one contains itself.
class Nesting {
 public:
  /// The depth to which Python's recursion limit lets it save.
  static constexpr int kMaxDepth = 1000;

  /// @param max_items  maximum number of items of all containers together; 64
  ///   bytes of keys count as an item.
  explicit Nesting(size_t max_items) : left_(max_items) {}

  /// Registers that `container` gets `items`: for a list or a tuple its
  /// elements, for a dict its keys and values alternately.
  /// @throws c10::Error if it is too deep, has too many items, or is filled too
  ///   late.
  void hold(const c10::IValue& container,
            const std::vector<c10::IValue>& items);

 private:
  struct Node {
    c10::IValue container;  // owned, so that its address is not reused
    int depth = 1;
    bool is_held = false;
  };

  Node& node(const c10::IValue& container);

  std::unordered_map<const void*, Node> nodes_;
  size_t left_;
};

}  // namespace ddp::detail
