#include "ddp/checkpoint/pickle/nesting.h"

#include <algorithm>

#include "ddp/checkpoint/pickle/pickle_stack.h"

namespace ddp::detail {
namespace {

bool is_container(const c10::IValue& value) {
  return value.isGenericDict() || value.isList() || value.isTuple();
}

/// A key is hashed for each item, but a file may hold a long one once.
size_t cost_of_keys(const c10::IValue& container,
                    const std::vector<c10::IValue>& items) {
  constexpr size_t kBytesForOneItem = 64;
  size_t bytes = 0;
  for (size_t i = 0; container.isGenericDict() && i < items.size(); i += 2) {
    bytes += items[i].isString() ? items[i].toStringRef().size() : 0;
  }
  return bytes / kBytesForOneItem;
}

}  // namespace

void Nesting::hold(const c10::IValue& container,
                   const std::vector<c10::IValue>& items) {
  if (!is_container(container)) {
    return;  // a python_object, which drops its items
  }
  const size_t cost = items.size() + cost_of_keys(container, items);
  TORCH_CHECK(cost <= left_, kDamagedPickle);
  left_ -= cost;
  Node& outer = node(container);
  for (const auto& item : items) {
    if (is_container(item)) {
      Node& inner = node(item);
      inner.is_held = true;
      outer.depth = std::max(outer.depth, inner.depth + 1);
    }
  }
  TORCH_CHECK(!outer.is_held, "it holds a value that contains itself");
  TORCH_CHECK(outer.depth <= kMaxDepth,
              "it nests values deeper than ",
              kMaxDepth,
              " levels");
}

Nesting::Node& Nesting::node(const c10::IValue& container) {
  Node& found = nodes_[container.internalToPointer()];
  found.container = container;
  return found;
}

}  // namespace ddp::detail
