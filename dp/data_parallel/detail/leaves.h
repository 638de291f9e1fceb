#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/utils/rnn.h>

#include "ddp/tensors/tensor_walk.h"

namespace dp::detail {

/// A visitor that keeps tensors. The rows of a packed sequence's data are steps
/// of all sequences: there is nothing to split or to put together.
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

/// The tensors in `value`, as `ddp::for_each_tensor` finds them.
/// @throws c10::Error for a PackedSequence.
template <typename T>
std::vector<at::Tensor> leaves(const T& value) {
  std::vector<at::Tensor> found;
  ddp::for_each_tensor(value, LeafVisit{found});
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

/// For each leaf of the results, at least one, that of every part. A leaf that
/// is undefined is so in all parts.
/// @throws c10::Error when the results are not alike.
std::vector<std::vector<at::Tensor>> leaves_by_place(
    const std::vector<PartResult>& parts);

}  // namespace dp::detail
