#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace ddp::test {

/// Returns normally distributed numbers that depend only on the seed. Uses its
/// own generator, because ranks in threads share the global one.
inline at::Tensor random(int64_t seed, at::IntArrayRef sizes) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

/// Fills the parameters with random numbers times `scale`, each with the next
/// seed.
inline void fill(torch::nn::Module& module, int64_t seed, double scale = 0.1) {
  const c10::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(random(seed++, parameter.sizes()) * scale);
  }
}

}  // namespace ddp::test
