#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Those of all groups.
std::vector<at::Tensor> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

/// Throws the same c10::Error on every rank, with the place of a parameter,
/// when the ranks' groups differ. Collective.
/// @param device  where the backend takes tensors.
void verify_across_ranks(
    c10d::Backend& group,
    c10::Device device,
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

/// @throws c10::Error when there is no parameter, when one comes twice, or when
///   they lie on several devices.
void check_parameters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

/// Registers the parameters that a wrapper leaves to each rank, while this
/// object lives. Optimizers that give parameters to all ranks ask
/// `check_shared`.
class IgnoredParameters {
 public:
  explicit IgnoredParameters(std::vector<at::Tensor> parameters);
  IgnoredParameters(const IgnoredParameters&) = delete;
  IgnoredParameters& operator=(const IgnoredParameters&) = delete;
  ~IgnoredParameters();

 private:
  std::vector<at::Tensor> parameters_;
};

/// @throws c10::Error, with the place, for a parameter that a wrapper ignores.
void check_shared(const std::vector<torch::optim::OptimizerParamGroup>& groups);

}  // namespace ddp::detail
