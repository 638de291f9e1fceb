#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/optim/fused.h"

namespace ddp::test {

using Optimizer = torch::optim::Optimizer;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using Tensors = std::vector<torch::Tensor>;

template <class Kind, class Options>
std::unique_ptr<Optimizer> made(const Groups& groups, const Options& options) {
  return std::make_unique<Kind>(groups, options);
}

/// Returns an optimizer by its name, with options of its own.
inline std::unique_ptr<Optimizer> make_optimizer(const std::string& kind,
                                                 const Groups& groups) {
  using namespace torch::optim;
  const auto sgd = SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
  const auto adam = AdamOptions(0.01).amsgrad(true);
  const auto adamw = AdamWOptions(0.01).weight_decay(0.1);
  if (kind == "sgd")
    return made<SGD>(groups, sgd);
  if (kind == "fused sgd")
    return made<FusedSGD>(groups, sgd);
  if (kind == "adam")
    return made<Adam>(groups, adam);
  if (kind == "fused adam")
    return made<FusedAdam>(groups, adam);
  if (kind == "adamw")
    return made<AdamW>(groups, adamw);
  if (kind == "fused adamw")
    return made<FusedAdamW>(groups, adamw);
  if (kind == "rmsprop")
    return made<RMSprop>(groups, RMSpropOptions(0.01));
  TORCH_CHECK(kind == "adagrad", "Expected an optimizer, but got ", kind);
  return made<Adagrad>(groups, AdagradOptions(0.01).lr_decay(0.1));
}

/// Returns normal random numbers that depend only on `seed`. They repeat after
/// 997 elements.
inline torch::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  constexpr int64_t kOwn = 997;
  const int64_t numel = c10::multiply_integers(sizes);
  auto all = torch::randn(std::min(numel, kOwn),
                          at::make_generator<at::CPUGeneratorImpl>(seed));
  if (numel > kOwn) {
    all = all.repeat({numel / kOwn + 1}).slice(0, 0, numel).clone();
  }
  return all.view(sizes);
}

/// Returns parameters of these shapes, the same ones in each call.
inline Tensors parameters(const std::vector<std::vector<int64_t>>& shapes) {
  Tensors all;
  for (size_t i = 0; i < shapes.size(); ++i) {
    all.push_back(numbers(shapes[i], i).requires_grad_());
  }
  return all;
}

/// Returns copies that are leaves of the same layout.
inline Tensors copies(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) {
    all.push_back(
        torch::empty_strided(tensor.sizes(), tensor.strides(), tensor.options())
            .copy_(tensor.detach())
            .requires_grad_());
  }
  return all;
}

/// Sets the gradients of a step, the same ones in each call. Parameter 2 has
/// none in the first and in every fourth step.
inline void set_gradients(const Tensors& params, int step) {
  for (size_t i = 0; i < params.size(); ++i) {
    params[i].mutable_grad().reset();
    if (i == 2 && step % 4 == 0) {
      continue;
    }
    const auto grad = numbers(params[i].sizes(), 1000 * (step + 1) + i);
    params[i].mutable_grad() =
        torch::empty_like(params[i].detach()).copy_(grad);
  }
}

/// Runs the steps [from, to) with their gradients.
inline void train(Optimizer& optimizer,
                  const Tensors& params,
                  int from,
                  int to) {
  for (int step = from; step < to; ++step) {
    set_gradients(params, step);
    optimizer.step();
  }
}

/// Returns the parameters after `steps` steps of the optimizer alone.
inline Tensors trained_alone(Tensors params,
                             const std::string& kind,
                             int steps) {
  const auto optimizer = make_optimizer(kind, Groups{params});
  train(*optimizer, params, 0, steps);
  return params;
}

inline bool equal(const Tensors& a, const Tensors& b) {
  bool all = a.size() == b.size();
  for (size_t i = 0; all && i < a.size(); ++i) {
    all = torch::equal(a[i], b[i]);
  }
  return all;
}

}  // namespace ddp::test
