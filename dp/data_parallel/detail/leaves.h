#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/utils/rnn.h>

#include "ddp/tensors/tensor_walk.h"

namespace dp::detail {

/// A visitor that collects tensors. It refuses a PackedSequence: the rows of
/// its data are time steps of all sequences and cannot be split or
/// concatenated.
struct LeafVisit {
  void operator()(const at::Tensor& tensor) const { found.push_back(tensor); }
  void operator()(const torch::nn::utils::rnn::PackedSequence&) const {
    TORCH_CHECK(false,
                "Expected tensors that can be split into rows and put together "
                "again, but got a PackedSequence; give and return the padded "
                "sequences and their lengths, and pack them in forward");
  }
  std::vector<at::Tensor>& found;
};

/// Returns the tensors in `value`, in the order of `ddp::for_each_tensor`.
/// @throws c10::Error for a PackedSequence.
template <typename T>
std::vector<at::Tensor> leaves(const T& value) {
  std::vector<at::Tensor> found;
  ddp::for_each_tensor(value, LeafVisit{found});
  return found;
}

/// Replaces the tensors in `value`, in the order of `leaves`, by `tensors`.
/// @throws c10::Error if `tensor_fields` of a struct returns copies.
template <typename T>
void replace_leaves(T& value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  ddp::for_each_tensor(value, [&](const at::Tensor& tensor) {
    // `value` is not const, so the cast is valid.
    const_cast<at::Tensor&>(tensor) = tensors[next++];
  });
  next = 0;
  ddp::for_each_tensor(value, [&](const at::Tensor& tensor) {
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
  struct Visit : LeafVisit {
    using LeafVisit::operator();
    void operator()(const ddp::detail::Structure& part) const {
      structure.push_back(part.text);
    }
    std::vector<std::string>& structure;
  };
  PartResult found;
  ddp::for_each_tensor(value, Visit{{found.leaves}, found.structure});
  return found;
}

/// Returns, for each leaf of the results, the tensors of all parts. A leaf that
/// is undefined must be undefined in all parts. `parts` must not be empty.
/// @throws c10::Error if the results have different structures.
std::vector<std::vector<at::Tensor>> leaves_by_place(
    const std::vector<PartResult>& parts);

}  // namespace dp::detail
