#pragma once

#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "ddp/checkpoint/state/stateful.h"

namespace ddp::detail {

/// Returns an adapter of the parameters and buffers of a module, which it
/// shares.
/// @throws c10::Error if `module` is null.
std::shared_ptr<Stateful> module_state(
    std::shared_ptr<torch::nn::Module> module);

/// Returns a pointer that does not own the object.
std::shared_ptr<Stateful> borrowed(Stateful& object);

/// Returns the optimizer if it is `Stateful`, else an adapter of one of
/// LibTorch's. The optimizer must outlive the result.
std::shared_ptr<Stateful> optimizer_state(torch::optim::Optimizer& optimizer);

/// The states of this rank's default generators: {'cpu': tensor, 'cuda':
/// [tensor, ...]}, with the tensors of Python's torch.get_rng_state and
/// torch.cuda.get_rng_state.
class RngState : public Stateful {
 public:
  /// @param modules  the trained modules. If one of them is on a GPU, 'cuda'
  ///   has the states of the process's GPUs, with the modules' GPUs first:
  ///   their indices may differ in the next run.
  explicit RngState(const std::vector<const torch::nn::Module*>& modules);

  c10::IValue state_dict() const override;
  void check_state_dict(const c10::IValue& state) const override;
  /// Sets the generators. Additional states are ignored, and GPUs without a
  /// state keep theirs.
  void load_state_dict(const c10::IValue& state) override;

 private:
  std::vector<c10::Device> gpus_;
};

}  // namespace ddp::detail
