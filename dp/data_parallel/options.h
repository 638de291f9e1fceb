#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "dp/data_parallel/aggregate.h"

namespace dp {

/// Options of `DataParallel`; the defaults are PyTorch's. Its constructor
/// throws c10::Error for invalid options, and its forward for a batch that does
/// not fit them.
///
/// Example:
/// @code
///   dp::DataParallel model(net, dp::DataParallelOptions()
///                                   .device_ids({0, 1, 2})
///                                   .chunk_sizes({8, 28, 28})
///                                   .aggregate(dp::mean));
/// @endcode
struct DataParallelOptions {
  /// Sets `devices` to the GPUs with these indices.
  /// @throws c10::Error if an index is negative or above 127. The wrapper's
  ///   constructor throws for a GPU that is not there.
  DataParallelOptions& device_ids(const std::vector<int64_t>& ids) {
    constexpr int64_t kLast = std::numeric_limits<c10::DeviceIndex>::max();
    devices_.clear();
    for (const int64_t id : ids) {
      TORCH_CHECK(id >= 0 && id <= kLast,
                  "Expected numbers of GPUs from 0 to ",
                  kLast,
                  ", but got ",
                  id);
      devices_.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(id));
    }
    return *this;
  }
  /// Devices of the replicas, one replica per entry. The module must be on the
  /// first device and is itself the replica there. GPUs must differ. The CPU
  /// may occur several times and together with GPUs. A GPU without an index is
  /// the current GPU. Empty: all GPUs; if there is no GPU, the wrapper calls
  /// the module directly and refuses `chunk_sizes`.
  TORCH_ARG(std::vector<torch::Device>, devices) = {};
  /// Device of the result. Unset: the first device.
  TORCH_ARG(std::optional<torch::Device>, output_device) = std::nullopt;
  /// Dimension along which inputs are split and results are concatenated.
  /// Negative values count from the end.
  TORCH_ARG(int64_t, dim) = 0;
  /// Number of rows for each device, for an uneven split. The first device also
  /// holds the results and the optimizer and may need fewer rows. The size of
  /// every batch must be the sum of these numbers. A device with 0 rows does
  /// not compute, except the first one for inputs without a tensor; at least
  /// one number must be positive.
  TORCH_ARG(std::vector<int64_t>, chunk_sizes) = {};
  /// Combines the replicas' tensors into one: `concatenate`, `sum`, `mean` or a
  /// custom function. With one device it is not called: the result is the
  /// module's, moved to `output_device`.
  TORCH_ARG(Aggregate, aggregate) = concatenate;
  /// Creates a module of the same type and structure as the wrapped module, for
  /// modules without `clone()`. Parameters and buffers of the new module
  /// receive the values of the wrapped module. If type or structure differ, or
  /// tensors are shared with the wrapped module, the construction of the
  /// wrapper throws c10::Error. Called for each replica but the first, again
  /// by `remake_replicas()` and by a forward after a change of the module's
  /// structure, which throw the same error. It must be valid as long as the
  /// wrapper.
  TORCH_ARG(std::function<std::shared_ptr<torch::nn::Module>()>,
            make_replica) = nullptr;
};

}  // namespace dp
