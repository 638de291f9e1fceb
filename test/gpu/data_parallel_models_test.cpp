#include <torch/cuda.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/gpu/schedule.h"
#include "test/support/catch.h"

// Tests other models and inputs than data_parallel_test.cpp, on GPUs only.
namespace dp {
namespace data_parallel_models_test {

using ddp::test::any_schedule;
using test::clone;
using test::differences;
using test::Output;
using torch::Tensor;
using Names = std::vector<std::string>;

/// Words of a text, a weight for each word, and a value for all rows.
struct Text {
  Tensor words;
  std::vector<Tensor> weights;
  double temperature = 1;
};
auto tensor_fields(const Text& text) {
  return std::tie(text.words, text.weights);
}

struct ReaderImpl : torch::nn::Cloneable<ReaderImpl> {
  ReaderImpl() { reset(); }
  void reset() override {
    table = register_module("table", torch::nn::Embedding(20, 8));
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    fc = register_module("fc", torch::nn::Linear(8, 4));
  }
  Output forward(const Text& text) {
    const auto weights = text.weights[0] + text.weights[1];
    const auto read = (norm(table(text.words)) * weights.unsqueeze(-1)).sum(1);
    return {fc(torch::tanh(read)) / text.temperature, read.sum(1)};
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Reader);

Text text_of(int64_t rows, torch::Device device) {
  Text text;
  text.words = torch::randint(20, {rows, 5}, torch::kLong).to(device);
  text.weights = {torch::rand({rows, 5}).to(device),
                  torch::rand({rows, 5}).to(device)};
  text.temperature = 2;
  return text;
}

std::vector<torch::Device> some_gpus() {
  std::vector<torch::Device> gpus;
  const int count = GENERATE(2, 3);
  for (int i = 0; i < std::min<int>(count, torch::cuda::device_count()); ++i) {
    gpus.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(i));
  }
  return gpus;
}

template <typename Module, typename Loss>
void train(Module& module, const Loss& loss, int step) {
  torch::manual_seed(step);
  module->zero_grad();
  loss(module).backward();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) {
    parameter.sub_(0.1 * parameter.grad());
  }
}

TEST_CASE("a struct goes through a model over GPUs", "[gpu]") {
  const auto devices = some_gpus();
  const bool uneven = GENERATE(false, true);
  INFO(any_schedule());
  torch::manual_seed(1);
  Reader plain;
  plain->to(devices[0]);
  Reader net(clone(plain.ptr()));
  auto options = DataParallelOptions().devices(devices);
  if (uneven) {
    // 3 and 8 rows, or 1, 5 and 5.
    std::vector<int64_t> rows(devices.size(), devices.size() == 2 ? 8 : 5);
    rows[0] = 11 - rows.back() * static_cast<int64_t>(devices.size() - 1);
    options.chunk_sizes(rows);
  }
  DataParallel model(net, options);
  const auto loss = [&](auto& module) {
    const auto result = module->forward(text_of(11, devices[0]));
    return result.logits.pow(2).mean() + result.extra->mean();
  };
  for (int step = 0; step < 4; ++step) {
    train(plain, loss, step);
    train(model, loss, step);
  }
  CHECK(differences(*plain, *net, 1e-3, 1e-5) == Names());
}

/// A module that returns its loss, so that the outputs stay on their devices.
struct JudgeImpl : torch::nn::Cloneable<JudgeImpl> {
  JudgeImpl() { reset(); }
  void reset() override {
    layers = register_module("layers",
                             torch::nn::Sequential(torch::nn::Linear(6, 12),
                                                   torch::nn::GELU(),
                                                   torch::nn::Linear(12, 3)));
  }
  Tensor forward(const Tensor& x, const Tensor& labels) {
    return torch::cross_entropy_loss(layers->forward(x), labels);
  }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(Judge);

TEST_CASE("the loss inside the module is the mean over GPUs", "[gpu]") {
  const auto devices = some_gpus();
  INFO(any_schedule());
  torch::manual_seed(2);
  Judge plain;
  plain->to(devices[0]);
  Judge net(clone(plain.ptr()));
  std::vector<int64_t> rows(devices.size(), 4);
  rows[0] = 2;
  DataParallel model(
      net,
      DataParallelOptions().devices(devices).chunk_sizes(rows).aggregate(mean));
  const int64_t all = 4 * static_cast<int64_t>(devices.size()) - 2;
  const auto loss = [&](auto& module) {
    // The inputs are on the host, as from a data loader.
    const auto x = torch::randn({all, 6});
    const auto labels = torch::randint(3, {all}, torch::kLong);
    if constexpr (std::is_same_v<std::decay_t<decltype(module)>, Judge>) {
      return module->forward(x.to(devices[0]), labels.to(devices[0]));
    } else {
      return module->forward(x, labels);
    }
  };
  for (int step = 0; step < 4; ++step) {
    train(plain, loss, step);
    train(model, loss, step);
  }
  CHECK(differences(*plain, *net, 1e-3, 1e-5) == Names());
}

}  // namespace data_parallel_models_test
}  // namespace dp
