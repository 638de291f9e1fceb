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

/// Options of `DataParallel`; the defaults are PyTorch's.
///
/// Example:
/// @code
///   dp::DataParallel model(net, dp::DataParallelOptions()
///                                   .device_ids({0, 1, 2})
///                                   .chunk_weights({1, 2, 2})
///                                   .aggregate(dp::mean));
/// @endcode
struct DataParallelOptions {
  /// The GPUs with these numbers: short for `devices`.
  /// @throws c10::Error for a number that no GPU can have.
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
  /// One replica on each. The module lies on the first one and is itself the
  /// replica there. GPUs must differ; the CPU may stand here several times and
  /// beside GPUs. A GPU without a number is the current one. Empty: all GPUs;
  /// without a GPU the wrapper just calls the module.
  TORCH_ARG(std::vector<torch::Device>, devices) = {};
  /// Where the result lies. Unset: the first device.
  TORCH_ARG(std::optional<torch::Device>, output_device) = std::nullopt;
  /// The dimension along which inputs are split and results concatenated;
  /// negative ones count from the end.
  TORCH_ARG(int64_t, dim) = 0;
  /// Rows for each device, when they are to be uneven: the first device also
  /// holds the results and the optimizer, so it may take less. Every batch must
  /// have just as many rows. A device with 0 rows does not take part.
  TORCH_ARG(std::vector<int64_t>, chunk_sizes) = {};
  /// The same as shares, for batches of any size: {1, 2} gives the second
  /// device twice the rows of the first, to the nearest row.
  TORCH_ARG(std::vector<double>, chunk_weights) = {};
  /// How the replicas' tensors become one: `concatenate`, `sum`, `mean` or a
  /// function of yours.
  TORCH_ARG(Aggregate, aggregate) = concatenate;
  /// Makes a module of the same type and structure as the wrapped one, for a
  /// module that has no `clone()`. Its parameters and buffers get the wrapped
  /// one's values.
  TORCH_ARG(std::function<std::shared_ptr<torch::nn::Module>()>,
            make_replica) = nullptr;
};

}  // namespace dp
