#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "dp/data_parallel/detail/tensor_walk.h"

namespace dp::detail {

/// Returns the tensors in `value`, in the order of `for_each_tensor`.
/// @throws c10::Error for a PackedSequence.
template <typename T>
std::vector<at::Tensor> leaves(const T& value) {
  std::vector<at::Tensor> found;
  for_each_tensor(value,
                  [&](const at::Tensor& tensor) { found.push_back(tensor); });
  return found;
}

/// Replaces the tensors in `value`, in the order of `leaves`, by `tensors`.
/// @throws c10::Error if `tensor_fields` of a struct returns copies.
template <typename T>
void replace_leaves(T& value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    // `value` is not const, so the cast is valid.
    const_cast<at::Tensor&>(tensor) = tensors[next++];
  });
  next = 0;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_same(tensors[next++]),
                "Expected tensor_fields to return references to the tensors, "
                "but got copies; return std::tie(...)");
  });
}

/// The result of one part of a batch.
struct PartResult {
  std::vector<at::Tensor> leaves;
  /// Sizes of containers, keys of maps and similar properties of the result.
  std::vector<std::string> structure;
};

template <typename T>
PartResult result_of(const T& value) {
  struct Visit {
    void operator()(const at::Tensor& tensor) const {
      found.leaves.push_back(tensor);
    }
    void operator()(const Structure& part) const {
      found.structure.push_back(part.text);
    }
    PartResult& found;
  };
  PartResult found;
  for_each_tensor(value, Visit{found});
  return found;
}

/// Returns, for each leaf of the results, the tensors of all parts. A leaf that
/// is undefined must be undefined in all parts. `parts` must not be empty.
/// @throws c10::Error if the results have different structures.
std::vector<std::vector<at::Tensor>> leaves_by_place(
    const std::vector<PartResult>& parts);

}  // namespace dp::detail
