#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "ddp/tensor_walk.h"

namespace dp::detail {

/// The tensors in `value`, as `ddp::for_each_tensor` finds them.
template <typename T>
std::vector<at::Tensor> leaves(const T& value) {
  std::vector<at::Tensor> found;
  ddp::for_each_tensor(
      value, [&](const at::Tensor& tensor) { found.push_back(tensor); });
  return found;
}

/// Puts other tensors in the places of those that `leaves` gave.
template <typename T>
void replace_leaves(T& value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  ddp::for_each_tensor(value, [&](const at::Tensor& tensor) {
    // `value` is ours and not const.
    const_cast<at::Tensor&>(tensor) = tensors[next++];
  });
  next = 0;
  ddp::for_each_tensor(value, [&](const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_same(tensors[next++]),
                "Expected tensor_fields to return references to the tensors, "
                "but got copies; return std::tie(...)");
  });
}

/// What one part of a batch returned.
struct PartResult {
  std::vector<at::Tensor> leaves;
  /// Sizes of its containers, keys of its maps and the like.
  std::vector<std::string> structure;
};

template <typename T>
PartResult result_of(const T& value) {
  struct Visit {
    void operator()(const at::Tensor& tensor) const {
      found.leaves.push_back(tensor);
    }
    void operator()(const ddp::detail::Structure& part) const {
      found.structure.push_back(part.text);
    }
    PartResult& found;
  };
  PartResult found;
  ddp::for_each_tensor(value, Visit{found});
  return found;
}

/// For each leaf of the results, at least one, that of every part. A leaf that
/// is undefined is so in all parts.
/// @throws c10::Error when the results are not alike.
std::vector<std::vector<at::Tensor>> leaves_by_place(
    const std::vector<PartResult>& parts);

}  // namespace dp::detail
