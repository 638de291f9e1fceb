#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "dp/data_parallel/detail/split.h"

namespace dp::detail {

/// The chunks that one replica processes.
struct Part {
  size_t replica = 0;
  int64_t samples = 0;              ///< rows of the first tensor
  std::vector<at::Tensor> tensors;  ///< chunks on the replica's device
};

/// Splits tensors along `dim` and moves the chunks to the devices. A device
/// without rows has no part. If there are no rows or no tensors, the first
/// device receives all tensors. Undefined tensors are passed to every part
/// unchanged. Twice differentiable.
///
/// @throws c10::Error if a tensor has no dimension `dim`, if the sizes of the
///   rule do not add up to the number of rows, or if tensors differ in their
///   number of rows.
std::vector<Part> scatter(const std::vector<at::Tensor>& tensors,
                          const std::vector<c10::Device>& devices,
                          const SplitRule& rule,
                          int64_t dim);

/// Returns `tensor` on `device`. Does not block for a copy to a GPU.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device);

/// Returns the number of bytes of the data; 0 for an undefined tensor.
int64_t bytes_of(const at::Tensor& tensor);
int64_t bytes_of(const std::vector<at::Tensor>& tensors);

}  // namespace dp::detail
