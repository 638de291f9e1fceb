#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "samples/experiments/servers/local_views.h"
#include "test/support/catch.h"

namespace samples {
namespace local_views_test {

using Tensors = std::vector<torch::Tensor>;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(5, 7));
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    second = register_module("second", torch::nn::Linear(7, 2));
    unused = register_parameter("unused", torch::ones({3}));
    wide = register_parameter("wide", torch::ones({3}, torch::kDouble));
    frozen = register_parameter("frozen", torch::ones({3}), false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::tanh(first(x))) * wide.mean().to(torch::kFloat);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor unused, wide, frozen;
};
TORCH_MODULE(Net);

std::vector<std::shared_ptr<torch::nn::Module>> replicas_of(const Net& net,
                                                            int64_t count) {
  std::vector<std::shared_ptr<torch::nn::Module>> replicas{net.ptr()};
  while (static_cast<int64_t>(replicas.size()) < count) {
    replicas.push_back(net->clone());
  }
  return replicas;
}

torch::Tensor batch_of(int64_t step, int64_t rows) {
  return torch::randn({rows, 5}, at::detail::createCPUGenerator(100 + step));
}

std::unique_ptr<torch::optim::Optimizer> adam(const Tensors& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, 0.01);
}

Net make_net() {
  torch::manual_seed(3);
  return Net();
}

/// Returns a plain module after the same training on whole batches.
Net train_plainly(int64_t rows) {
  Net net = make_net();
  const auto optimizer = adam(net->parameters());
  for (int64_t step = 0; step < 20; ++step) {
    optimizer->zero_grad();
    net->forward(batch_of(step, rows)).pow(2).mean().backward();
    optimizer->step();
  }
  return net;
}

/// Returns the replicas after a training on chunks of these batches.
template <class View>
std::vector<std::shared_ptr<torch::nn::Module>> train(
    View& view,
    const std::vector<std::shared_ptr<torch::nn::Module>>& replicas,
    const std::vector<int64_t>& rows) {
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  std::vector<double> shares;
  for (const int64_t own : rows) {
    shares.push_back(static_cast<double>(own) / static_cast<double>(total));
  }
  for (int64_t step = 0; step < 20; ++step) {
    const auto chunks = batch_of(step, total).split_with_sizes(rows);
    for (size_t i = 0; i < replicas.size(); ++i) {
      replicas[i]->zero_grad();
      replicas[i]->as<NetImpl>()->forward(chunks[i]).pow(2).mean().backward();
    }
    view.step(shares);
  }
  return replicas;
}

void check_close(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto expected = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    INFO(item.key());
    CHECK(item.value().allclose(expected[item.key()], 1e-4, 1e-6));
  }
}

void check_equal(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto expected = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    INFO(item.key());
    CHECK(item.value().equal(expected[item.key()]));
  }
}

TEST_CASE("both views train as the plain module on the whole batch",
          "[local_views]") {
  using Rows = std::vector<int64_t>;
  const auto rows =
      GENERATE(values<Rows>({{6}, {3, 3}, {2, 3, 7}, {4, 1, 1, 2}}));
  const auto count = static_cast<int64_t>(rows.size());
  const auto plain =
      train_plainly(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  const auto served = replicas_of(make_net(), count);
  LocalParameterServer server(served, adam);
  train(server, served, rows);
  const auto reduced = replicas_of(make_net(), count);
  LocalAllReduce ranks(reduced, adam);
  train(ranks, reduced, rows);
  check_close(*served[0], *plain);
  for (size_t i = 0; i < served.size(); ++i) {
    check_equal(*served[i], *served[0]);
    check_equal(*reduced[i], *served[0]);  // bit for bit the same view
  }
}

TEST_CASE("what each replica moves", "[local_views]") {
  const int64_t count = GENERATE(1, 2, 3, 5);
  const auto net = make_net();
  // Without batch norm and wide: 5 x 7 + 7 + 7 x 2 + 2 floats, and 3 doubles.
  const int64_t gradients = 4 * 58 + 8 * 3;
  const int64_t state = gradients + 4 * (7 + 7 + 3 + 3) + 4 * (7 + 7) + 8;
  const std::vector<int64_t> rows(count, 2);
  constexpr int64_t kSteps = 20;

  const auto served = replicas_of(net, count);
  LocalParameterServer server(served, adam);
  train(server, served, rows);
  for (int64_t i = 0; i < count; ++i) {
    const auto& moved = server.moved()[i];
    CHECK(moved.sent == kSteps * (i == 0 ? (count - 1) * state : gradients));
    CHECK(moved.received ==
          kSteps * (i == 0 ? (count - 1) * gradients : state));
  }

  const auto reduced = replicas_of(net, count);
  LocalAllReduce ranks(reduced, adam);
  train(ranks, reduced, rows);
  int64_t sent = 0, received = 0;
  for (const auto& moved : ranks.moved()) {
    // 2 (n - 1) / n, except for elements of five parameters that n does not
    // divide.
    const double share = 2.0 * (count - 1) / count * gradients * kSteps;
    CHECK(moved.sent == Approx(share).margin(kSteps * 5 * 8 * 2 * count));
    CHECK(moved.received == Approx(share).margin(kSteps * 5 * 8 * 2 * count));
    sent += moved.sent;
    received += moved.received;
  }
  CHECK(sent == 2 * (count - 1) * gradients * kSteps);
  CHECK(received == sent);
}

TEST_CASE("gradients that some replicas lack", "[local_views]") {
  const auto check = [](auto make_view) {
    torch::nn::Linear first(2, 1), second(2, 1);
    second->weight.mutable_grad() = torch::full({1, 2}, 3.0);
    const auto before = first->weight.detach().clone();
    const auto bias = first->bias.detach().clone();
    make_view(LocalView::Replicas{first.ptr(), second.ptr()})->step({0.5, 2});
    CHECK(first->weight.allclose(before - 6));
    CHECK(first->bias.equal(bias));
    CHECK(second->weight.equal(first->weight));
    CHECK(second->bias.equal(first->bias));
  };
  const auto plain = [](const Tensors& parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, 1);
  };
  check([&](const auto& replicas) {
    return std::make_unique<LocalParameterServer>(replicas, plain);
  });
  check([&](const auto& replicas) {
    return std::make_unique<LocalAllReduce>(replicas, plain);
  });
}

}  // namespace local_views_test
}  // namespace samples
