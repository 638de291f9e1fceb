#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace ddp::test {

/// Normally distributed, the same for a seed. Ranks are threads: a generator of
/// one's own instead of the global one.
inline at::Tensor random(int64_t seed, at::IntArrayRef sizes) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

/// Gives each parameter the next seed's numbers, `scale` times.
inline void fill(torch::nn::Module& module, int64_t seed, double scale = 0.1) {
  const c10::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(random(seed++, parameter.sizes()) * scale);
  }
}

}  // namespace ddp::test
