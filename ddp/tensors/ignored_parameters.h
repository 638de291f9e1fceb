#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Registers, while this object exists, the parameters that a wrapper leaves
/// local to each rank, for optimizers that make parameters equal on all ranks.
class IgnoredParameters {
 public:
  explicit IgnoredParameters(std::vector<at::Tensor> parameters);
  IgnoredParameters(const IgnoredParameters&) = delete;
  IgnoredParameters& operator=(const IgnoredParameters&) = delete;
  ~IgnoredParameters();

 private:
  std::vector<at::Tensor> parameters_;
};

/// Returns the parameters without the parameters that a wrapper ignores.
std::vector<at::Tensor> shared_of(const std::vector<at::Tensor>& parameters);

}  // namespace ddp::detail
