// A module that changes after it was wrapped: the replicas compute its current
// function, or an error gives the reason.
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/support/catch.h"

namespace dp {
namespace module_changes_test {

using test::close;
using test::on_cpus;
using torch::Tensor;

/// A layer without tensors before one with tensors.
struct DroppingImpl : torch::nn::Cloneable<DroppingImpl> {
  explicit DroppingImpl(double p) : p(p) { reset(); }
  void reset() override {
    drop = register_module("drop", torch::nn::Dropout(p));
    fc = register_module("fc", torch::nn::Linear(3, 1));
  }
  void replace(double rate) {
    p = rate;
    drop = replace_module("drop", torch::nn::Dropout(p));
  }
  Tensor forward(const Tensor& x) { return fc(drop(x)); }
  double p;
  torch::nn::Dropout drop{nullptr};
  torch::nn::Linear fc{nullptr};
};

TEST_CASE("a replaced submodule without tensors", "[dp]") {
  const auto net = std::make_shared<DroppingImpl>(0);
  DataParallel model(net, on_cpus(3));
  const auto x = torch::randn({6, 3});
  for (const double rate : {1.0, 0.0, 1.0}) {
    CHECK(close(model->forward(x), net->forward(x)));
    net->replace(rate);
  }
  CHECK(close(model->forward(x), net->forward(x)));
  // Replicas also follow the new submodule's mode.
  net->drop->eval();
  CHECK(close(model->forward(x), net->fc(x)));
}

TEST_CASE("submodules that are added", "[dp]") {
  torch::nn::Sequential net(torch::nn::Linear(3, 4));
  DataParallel model(net, on_cpus(2));
  const auto x = torch::randn({5, 3});
  const auto check = [&] { CHECK(close(model->forward(x), net->forward(x))); };
  check();
  net->push_back(torch::nn::ReLU());
  check();
  net->push_back(torch::nn::Linear(4, 2));
  check();
  net->push_back(torch::nn::Softmax(1));
  check();
  model->forward(x).pow(2).sum().backward();
  for (const auto& parameter : net->parameters()) {
    CHECK(parameter.grad().defined());
  }
}

/// Two layers in sequence.
struct PairImpl : torch::nn::Cloneable<PairImpl> {
  PairImpl() { reset(); }
  void reset() override {
    a = register_module("a", torch::nn::Linear(3, 3));
    b = register_module("b", torch::nn::Linear(3, 3));
  }
  Tensor forward(const Tensor& x) { return b(torch::tanh(a(x))); }
  torch::nn::Linear a{nullptr}, b{nullptr};
};

/// Makes its layer at its first use.
struct LateImpl : torch::nn::Cloneable<LateImpl> {
  void reset() override {}
  Tensor forward(const Tensor& x) {
    if (layer.is_empty()) {
      layer = register_module("layer", torch::nn::Linear(3, 2));
    }
    return layer(x);
  }
  torch::nn::Linear layer{nullptr};
};

TEST_CASE("a layer that a forward makes is an error at once", "[dp]") {
  const auto x = torch::ones({4, 3});
  DataParallel model(std::make_shared<LateImpl>(), on_cpus(2));
  CHECK_THROWS_WITH(
      model->forward(x),
      Catch::Contains("that registers nothing, but it has added"));
  // One row is computed by the module alone.
  DataParallel one_row(std::make_shared<LateImpl>(), on_cpus(2));
  CHECK_NOTHROW(one_row->forward(x.narrow(0, 0, 1)));
}

TEST_CASE("submodules that are tied and untied", "[dp]") {
  const auto net = std::make_shared<PairImpl>();
  DataParallel model(net, on_cpus(3));
  const auto x = torch::randn({6, 3});
  const auto check = [&] {
    net->zero_grad();
    const auto expected = net->forward(x);
    expected.pow(2).sum().backward();
    const auto gradient = net->a->weight.grad().clone();
    net->zero_grad();
    const auto output = model->forward(x);
    CHECK(close(output, expected));
    output.pow(2).sum().backward();
    CHECK(close(net->a->weight.grad(), gradient));
  };
  check();
  net->b = net->replace_module("b", net->a);
  check();
  net->b = net->replace_module("b", torch::nn::Linear(3, 3));
  check();
}

TEST_CASE("a clone that ties what the module has untied", "[dp]") {
  struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
    TiedImpl() { reset(); }
    void reset() override {
      encoder = register_parameter("encoder", torch::ones({3, 3}));
      decoder = register_parameter("decoder", encoder);
    }
    void untie() {
      parameters_["decoder"] = torch::full({3, 3}, 2.0).requires_grad_();
      decoder = parameters_["decoder"];
    }
    Tensor forward(const Tensor& x) {
      return torch::linear(torch::linear(x, encoder), decoder);
    }
    Tensor encoder, decoder;
  };
  const auto net = std::make_shared<TiedImpl>();
  DataParallel model(net, on_cpus(2));
  const auto x = torch::ones({4, 3});
  CHECK(close(model->forward(x), net->forward(x)));
  net->untie();
  CHECK_THROWS_WITH(
      model->forward(x),
      Catch::Contains("decoder and encoder are two in the module and one in "
                      "the replica; untie them in reset()"));
}

TEST_CASE("a module whose replicas cannot be made anew", "[dp]") {
  struct FailingImpl : torch::nn::Cloneable<FailingImpl> {
    FailingImpl() { reset(); }
    void reset() override {
      TORCH_CHECK(!fails, "no more");
      fc = register_module("fc", torch::nn::Linear(3, 1));
    }
    Tensor forward(const Tensor& x) { return fc(x); }
    bool fails = false;
    torch::nn::Linear fc{nullptr};
  };
  const auto net = std::make_shared<FailingImpl>();
  DataParallel model(net, on_cpus(2));
  const auto x = torch::randn({4, 3});
  net->fails = true;
  CHECK_THROWS_WITH(model->remake_replicas(), Catch::Contains("no more"));
  CHECK_THROWS_WITH(model->forward(x), Catch::Contains("no more"));
  net->fails = false;
  CHECK(close(model->forward(x), net->forward(x)));
}

}  // namespace module_changes_test
}  // namespace dp
