#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace ddp::detail {

/// Owning pointer of a node in the autograd graph: std::shared_ptr in LibTorch
/// 2.11, c10::intrusive_ptr in 2.15. Chosen by the type of Edge::function.
template <typename T>
using NodePtrTo =
    std::conditional_t<std::is_same_v<decltype(torch::autograd::Edge::function),
                                      std::shared_ptr<torch::autograd::Node>>,
                       std::shared_ptr<T>,
                       c10::intrusive_ptr<T>>;
using NodePtr = NodePtrTo<torch::autograd::Node>;

/// Creates a node of type T that can be stored in an Edge.
template <typename T, typename... Args>
NodePtrTo<T> make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtrTo<T>, std::shared_ptr<T>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

}  // namespace ddp::detail
