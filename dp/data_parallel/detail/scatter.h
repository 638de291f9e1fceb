#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace dp::detail {

/// Checks `DataParallelOptions::chunk_sizes`; empty is valid. Pure.
/// @throws c10::Error if their number is not the number of devices, if one is
///   negative, or if all are 0.
void check_chunk_sizes(const std::vector<int64_t>& chunk_sizes, size_t devices);

/// Returns the number of rows of each device, 0 for a device that does not
/// compute: the chunk sizes, or if there are none the sizes of `Tensor::chunk`.
/// Pure.
/// @throws c10::Error if the chunk sizes do not add up to `rows`.
std::vector<int64_t> split_rows(int64_t rows,
                                size_t devices,
                                const std::vector<int64_t>& chunk_sizes);

/// The chunks that one replica processes.
struct Part {
  size_t replica = 0;
  int64_t samples = 0;              ///< rows of the first tensor
  std::vector<at::Tensor> tensors;  ///< chunks on the replica's device
};

/// Splits tensors along `dim` by `split_rows` and moves the chunks to the
/// devices. A device without rows has no part. If there are no rows or no
/// tensors, the first device receives all tensors. Undefined tensors are passed
/// to every part unchanged. Twice differentiable.
///
/// @throws c10::Error if a tensor has no dimension `dim`, if the chunk sizes do
///   not add up to the number of rows, or if tensors differ in their number of
///   rows.
std::vector<Part> scatter(const std::vector<at::Tensor>& tensors,
                          const std::vector<c10::Device>& devices,
                          const std::vector<int64_t>& chunk_sizes,
                          int64_t dim);

/// Returns `tensor` on `device`. Does not block for a copy to a GPU.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device);

/// Returns the number of bytes of the data; 0 for an undefined tensor.
int64_t bytes_of(const at::Tensor& tensor);
int64_t bytes_of(const std::vector<at::Tensor>& tensors);

/// Counters behind `ReplicaTraffic`, for one replica. Autograd's threads count
/// the gradients, possibly after the wrapper has been destroyed.
struct TrafficCounter {
  std::atomic<int64_t> state{0};
  std::atomic<int64_t> inputs{0};
  std::atomic<int64_t> outputs{0};
  std::atomic<int64_t> gradients{0};
};
using TrafficCounters = std::shared_ptr<std::vector<TrafficCounter>>;

}  // namespace dp::detail
