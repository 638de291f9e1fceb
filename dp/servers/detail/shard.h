#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/servers/detail/flat_tensors.h"
#include "dp/servers/parameter_server.h"

namespace dp::detail {

/// The parameters of one server and their optimizer. Not thread-safe.
class Shard {
 public:
  /// Copies the values of `parameters`.
  Shard(const std::vector<at::Tensor>& parameters,
        const OptimizerFactory& make_optimizer,
        UpdateHook before_update);

  /// Calls the hook and makes one optimizer step with `gradients`.
  void step(const std::vector<at::Tensor>& gradients, const Update& update);

  /// Memory of the parameters, which steps modify, and the parameters as pieces
  /// of it.
  const at::Tensor& flat() const { return memory_.flat(); }
  const std::vector<at::Tensor>& parameters() const { return memory_.pieces(); }
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  /// Size of the parameters in bytes.
  int64_t bytes() const { return memory_.bytes(); }
  void copy_to(const std::vector<at::Tensor>& parameters) const;

 private:
  FlatTensors memory_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  UpdateHook before_update_;
};

/// Copies each tensor of `from` to the tensor of `to` at the same index,
/// without autograd.
void copy_all(const std::vector<at::Tensor>& from,
              const std::vector<at::Tensor>& to);

}  // namespace dp::detail
