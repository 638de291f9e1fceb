#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dp/data_parallel.h"

namespace dp::test {

inline std::vector<torch::Device> cpus(size_t count) {
  return std::vector<torch::Device>(count, torch::kCPU);
}

inline DataParallelOptions on_cpus(size_t count) {
  return DataParallelOptions().devices(cpus(count));
}

/// Runs a single forward with replicas of its own.
template <typename Net>
torch::Tensor data_parallel(
    Net net,
    torch::Tensor input,
    std::vector<torch::Device> devices = {},
    std::optional<torch::Device> output_device = std::nullopt,
    int64_t dim = 0) {
  DataParallel model(std::move(net),
                     DataParallelOptions()
                         .devices(std::move(devices))
                         .output_device(output_device)
                         .dim(dim));
  return model->forward(std::move(input));
}

/// A module with one Linear and a function: `forward(x, args...)` returns
/// `function(*this, x, args...)`.
template <typename Function>
struct LambdaImpl : torch::nn::Cloneable<LambdaImpl<Function>> {
  LambdaImpl(Function f, int64_t in, int64_t out)
      : function(std::make_shared<Function>(std::move(f))), in(in), out(out) {
    reset();
  }
  void reset() override {
    linear = this->register_module("linear", torch::nn::Linear(in, out));
  }
  template <typename... Args>
  auto forward(Args&&... args) {
    return (*function)(*this, std::forward<Args>(args)...);
  }
  std::shared_ptr<Function> function;  // a lambda cannot be assigned
  int64_t in, out;
  torch::nn::Linear linear{nullptr};
};

template <typename Function>
auto lambda(Function function, int64_t in = 3, int64_t out = 2) {
  return std::make_shared<LambdaImpl<Function>>(std::move(function), in, out);
}

/// A result with tensors and a value that is no tensor.
struct Output {
  torch::Tensor logits;
  std::optional<torch::Tensor> extra;
  int note = 0;
};
inline auto tensor_fields(const Output& output) {
  return std::tie(output.logits, output.extra);
}

/// Maps images [n, 1, 8, 8] to 5 scores.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    conv = register_module("conv", torch::nn::Conv2d(1, 4, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    fc = register_module("fc", torch::nn::Linear(4 * 6 * 6, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc(torch::tanh(norm(conv(x))).flatten(1));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

template <typename M>
std::shared_ptr<M> clone(const std::shared_ptr<M>& module) {
  return std::dynamic_pointer_cast<M>(module->clone());
}

inline bool close(const torch::Tensor& a,
                  const torch::Tensor& b,
                  double relative = 1e-4,
                  double absolute = 1e-6) {
  return a.sizes() == b.sizes() && a.allclose(b, relative, absolute);
}

/// Returns the names of the parameters and buffers that differ.
inline std::vector<std::string> differences(const torch::nn::Module& a,
                                            const torch::nn::Module& b,
                                            double relative = 1e-4,
                                            double absolute = 1e-6) {
  std::vector<std::string> names;
  const auto compare = [&](const auto& of_a, const auto& of_b) {
    for (const auto& item : of_a) {
      if (!close(item.value(), of_b[item.key()], relative, absolute)) {
        names.push_back(item.key());
      }
    }
  };
  compare(a.named_parameters(), b.named_parameters());
  compare(a.named_buffers(), b.named_buffers());
  return names;
}

}  // namespace dp::test
