#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Returns the parameters of all groups.
std::vector<at::Tensor> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

/// Checks that the parameter groups of all ranks agree. Collective.
/// @param device  a device that the backend supports.
/// @throws c10::Error, the same on every rank, with the place of a parameter,
///   if the groups differ.
void verify_across_ranks(
    c10d::Backend& group,
    c10::Device device,
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

/// @throws c10::Error if there is no parameter, if a parameter occurs twice, or
///   if the parameters lie on several devices.
void check_parameters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

/// Registers, while this object exists, the parameters that a wrapper leaves
/// local to each rank. Optimizers that broadcast parameters call
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

/// Returns the parameters without those that a wrapper ignores.
std::vector<at::Tensor> shared_of(const std::vector<at::Tensor>& parameters);

/// @throws c10::Error, with the place, if a wrapper ignores one of the
///   parameters.
void check_shared(const std::vector<torch::optim::OptimizerParamGroup>& groups);

}  // namespace ddp::detail
