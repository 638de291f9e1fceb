#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/detail/parameter_server/flat_tensors.h"
#include "dp/parameter_server.h"

namespace dp::detail {

/// A worker's gradients for one shard, as they travel: zeros where it has none,
/// and then a byte for each that says whether it has.
class FlatGradients {
 public:
  explicit FlatGradients(const std::vector<at::Tensor>& parameters);

  /// Takes the `.grad`s of the parameters. Sparse ones become dense.
  void take(const std::vector<at::Tensor>& parameters);

  const at::Tensor& flat() const { return memory_.flat(); }
  at::Tensor gradient(size_t index) const { return memory_.pieces()[index]; }
  bool has(size_t index) const;

 private:
  FlatTensors memory_;
};

/// The parameters that one server holds, and their optimizer. Not thread-safe.
class Shard {
 public:
  /// Copies the values of `parameters`.
  Shard(const std::vector<at::Tensor>& parameters,
        const OptimizerFactory& make_optimizer,
        UpdateHook before_update);

  /// One step by the mean of the gradients, added up in this order after
  /// scaling. Overwrites the gradients.
  void step(const std::vector<FlatGradients*>& gradients, const Update& update);

  /// The parameters' memory as it is now; later steps do not change it.
  at::Tensor snapshot();
  /// Bytes of the parameters.
  int64_t bytes() const { return memory_.bytes(); }
  void copy_to(const std::vector<at::Tensor>& parameters) const;

 private:
  FlatTensors memory_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  UpdateHook before_update_;
  at::Tensor snapshot_;  // undefined when out of date
};

/// Copies tensor by tensor, without a history.
void copy_all(const std::vector<at::Tensor>& from,
              const std::vector<at::Tensor>& to);

}  // namespace dp::detail
