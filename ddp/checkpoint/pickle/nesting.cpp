#include "ddp/checkpoint/pickle/nesting.h"

#include <algorithm>

#include "ddp/checkpoint/pickle/pickle_stack.h"

namespace ddp::detail {
namespace {

bool is_container(const c10::IValue& value) {
  return value.isGenericDict() || value.isList() || value.isTuple();
}

}  // namespace

void Nesting::hold(const c10::IValue& container,
                   const std::vector<c10::IValue>& items) {
  if (!is_container(container)) {
    return;  // a python_object, which drops its items
  }
  TORCH_CHECK(items.size() <= left_, kDamagedPickle);
  left_ -= items.size();
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
