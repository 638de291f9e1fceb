#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/servers/detail/flat_tensors.h"
#include "dp/servers/parameter_server.h"

namespace dp::detail {

/// The parameters that one server holds, and their optimizer. Not thread-safe.
class Shard {
 public:
  /// Copies the values of `parameters`.
  Shard(const std::vector<at::Tensor>& parameters,
        const OptimizerFactory& make_optimizer,
        UpdateHook before_update);

  /// One step by these gradients.
  void step(const std::vector<at::Tensor>& gradients, const Update& update);

  /// The parameters' memory, which steps change, and they in it.
  const at::Tensor& flat() const { return memory_.flat(); }
  const std::vector<at::Tensor>& parameters() const { return memory_.pieces(); }
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  /// Bytes of the parameters.
  int64_t bytes() const { return memory_.bytes(); }
  void copy_to(const std::vector<at::Tensor>& parameters) const;

 private:
  FlatTensors memory_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  UpdateHook before_update_;
};

/// Copies tensor by tensor, without a history.
void copy_all(const std::vector<at::Tensor>& from,
              const std::vector<at::Tensor>& to);

}  // namespace dp::detail
