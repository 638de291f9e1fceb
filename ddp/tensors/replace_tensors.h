#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "ddp/tensors/tensor_walk.h"

namespace ddp::detail {

/// Replaces each tensor in `value` by `replacement(tensor)`, in the order of
/// `for_each_tensor`.
/// @throws c10::Error if `tensor_fields` of a struct returns copies.
template <typename T, typename Replacement>
void replace_tensors(T& value, const Replacement& replacement) {
  std::vector<at::Tensor> expected;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    // `value` is not const, so the cast is valid.
    const_cast<at::Tensor&>(tensor) =
        expected.emplace_back(replacement(tensor));
  });
  size_t next = 0;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_same(expected[next++]),
                "Expected tensor_fields to return references to the tensors, "
                "but got copies; return std::tie(...)");
  });
}

}  // namespace ddp::detail
