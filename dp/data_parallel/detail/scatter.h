#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "dp/data_parallel/detail/split.h"

namespace dp::detail {

/// What one replica works on.
struct Part {
  size_t replica = 0;
  int64_t samples = 0;              ///< rows of the first tensor
  std::vector<at::Tensor> tensors;  ///< its chunks, on its device
};

/// Splits tensors along `dim` and moves the chunks to the devices. A device
/// that gets no row has no part. Without rows or tensors at all the first
/// device gets everything there is. Undefined tensors go to every part as they
/// are. Differentiable, twice too.
///
/// @throws c10::Error when a tensor has no dimension `dim`, when sizes of the
///   rule do not add up, and when tensors differ in their rows.
std::vector<Part> scatter(const std::vector<at::Tensor>& tensors,
                          const std::vector<c10::Device>& devices,
                          const SplitRule& rule,
                          int64_t dim);

/// `tensor` on `device`; does not wait for a copy to a GPU.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device);

/// Bytes of data; none of an undefined tensor.
int64_t bytes_of(const at::Tensor& tensor);
int64_t bytes_of(const std::vector<at::Tensor>& tensors);

}  // namespace dp::detail
