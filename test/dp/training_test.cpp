// A step over replicas equals a step of the plain module on the whole batch.
#include <sstream>

#include <torch/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "ddp/nn/checkpoint_activations.h"
#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/support/catch.h"

namespace dp {
namespace training_test {

using test::clone;
using test::close;
using test::cpus;
using test::differences;
using test::lambda;
using test::Net;
using test::on_cpus;
using torch::Tensor;
using Names = std::vector<std::string>;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name, const std::vector<Tensor>& parameters) {
  if (name == "adam") {
    return std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(1e-3).weight_decay(1e-2));
  }
  return std::make_unique<torch::optim::SGD>(
      parameters,
      torch::optim::SGDOptions(0.05)
          .momentum(name == "momentum" ? 0.9 : 0)
          .weight_decay(1e-3));
}

TEST_CASE("50 steps equal those of the plain module", "[dp]") {
  const std::string optimizer = GENERATE("sgd", "momentum", "adam");
  const size_t count = GENERATE(1, 2, 3);
  torch::manual_seed(1);
  Net plain;
  plain->to(torch::kDouble);
  plain->norm->eval();  // same statistics for any split
  plain->norm->running_mean.normal_(0, 0.1);
  plain->norm->running_var.uniform_(0.5, 1.5);
  const auto net = clone(plain.ptr());
  net->norm->eval();
  DataParallel model(net, on_cpus(count));
  const auto one = make_optimizer(optimizer, plain->parameters());
  const auto many = make_optimizer(optimizer, model->parameters());
  for (int step = 0; step < 50; ++step) {
    const auto images = torch::randn({7, 1, 8, 8}, torch::kDouble);
    const auto labels = torch::randint(5, {7});
    one->zero_grad();
    torch::cross_entropy_loss(plain(images), labels).backward();
    one->step();
    many->zero_grad();
    torch::cross_entropy_loss(model->forward(images), labels).backward();
    many->step();
  }
  CHECK(differences(*plain, *net, 1e-9, 1e-12) == Names());
}

TEST_CASE("batch norm in training has the statistics of each part", "[dp]") {
  const std::string optimizer = GENERATE("sgd", "momentum", "adam");
  torch::manual_seed(2);
  Net plain;
  plain->to(torch::kDouble);
  const auto net = clone(plain.ptr());
  DataParallel model(net, on_cpus(3));
  const auto one = make_optimizer(optimizer, plain->parameters());
  const auto many = make_optimizer(optimizer, model->parameters());
  for (int step = 0; step < 50; ++step) {
    const auto images = torch::randn({8, 1, 8, 8}, torch::kDouble);
    const auto labels = torch::randint(5, {8});
    one->zero_grad();
    // Runs each part on the plain module. Only the first part may change its
    // running statistics.
    const auto chunks = images.chunk(3);
    std::vector<Tensor> outputs{plain(chunks[0])};
    const auto mean = plain->norm->running_mean.clone();
    const auto var = plain->norm->running_var.clone();
    const auto count = plain->norm->num_batches_tracked.clone();
    outputs.push_back(plain(chunks[1]));
    outputs.push_back(plain(chunks[2]));
    // data() hides the change from autograd, which has saved these tensors.
    plain->norm->running_mean.data().copy_(mean);
    plain->norm->running_var.data().copy_(var);
    plain->norm->num_batches_tracked.data().copy_(count);
    torch::cross_entropy_loss(torch::cat(outputs), labels).backward();
    one->step();
    many->zero_grad();
    torch::cross_entropy_loss(model->forward(images), labels).backward();
    many->step();
  }
  CHECK(net->norm->num_batches_tracked.item<int64_t>() == 50);
  CHECK(differences(*plain, *net, 1e-9, 1e-12) == Names());
}

TEST_CASE("torch::save sees through the wrapper", "[dp]") {
  Net net;
  DataParallel model(net, on_cpus(2));
  std::stringstream wrapped;
  torch::save(model, wrapped);
  Net plain;
  torch::load(plain, wrapped);
  CHECK(differences(*plain, *net, 0, 0) == Names());
  std::stringstream bare;
  torch::save(Net(), bare);
  torch::load(model, bare);
  bare.seekg(0);
  torch::load(plain, bare);
  CHECK(differences(*plain, *net, 0, 0) == Names());
}

TEST_CASE("an uneven split changes nothing but who computes what", "[dp]") {
  torch::manual_seed(3);
  torch::nn::Linear plain(4, 3);
  const auto input = torch::randn({10, 4}, torch::requires_grad());
  plain(input).pow(2).sum().backward();
  const auto expected = plain->weight.grad().clone();
  const auto expected_input = input.grad().clone();
  const auto options =
      GENERATE(DataParallelOptions(on_cpus(3).chunk_sizes({1, 5, 4})),
               DataParallelOptions(on_cpus(3).chunk_sizes({0, 10, 0})),
               DataParallelOptions(on_cpus(4).chunk_sizes({0, 5, 5, 0})));
  plain->zero_grad();
  input.mutable_grad() = Tensor();
  DataParallel model(plain, options);
  const auto output = model->forward(input);
  CHECK(close(output, plain(input)));
  output.pow(2).sum().backward();
  CHECK(close(plain->weight.grad(), expected));
  CHECK(close(input.grad(), expected_input));
}

TEST_CASE("each replica gets the rows asked for", "[dp]") {
  const auto net = lambda([](auto& self, const Tensor& x) {
    return self.linear(x) * 0 + x.size(0);
  });
  const auto rows = [&](const DataParallelOptions& options, int64_t batch) {
    DataParallel model(net, options);
    const auto counts =
        model->forward(torch::ones({batch, 3})).select(1, 0).contiguous();
    return std::vector<float>(counts.template data_ptr<float>(),
                              counts.template data_ptr<float>() + batch);
  };
  using Rows = std::vector<float>;
  CHECK(rows(on_cpus(2), 5) == Rows{3, 3, 3, 2, 2});
  CHECK(rows(on_cpus(2).chunk_sizes({1, 3}), 4) == Rows{1, 3, 3, 3});
  CHECK(rows(on_cpus(3), 2) == Rows{1, 1});
}

TEST_CASE("the gradient can be differentiated", "[dp]") {
  torch::manual_seed(4);
  torch::nn::Sequential plain(
      torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  plain->to(torch::kDouble);
  const auto net =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone());
  DataParallel model(net, on_cpus(3));
  torch::optim::SGD one(plain->parameters(), 1e-3);
  torch::optim::SGD many(model->parameters(), 1e-3);
  // A gradient penalty, and the squared gradient of the parameters.
  const auto train = [](auto& module, auto& optimizer, const Tensor& data) {
    optimizer.zero_grad();
    const auto x = data.clone().requires_grad_();
    const auto score = module->forward(x).sum();
    const auto by_x = torch::autograd::grad({score}, {x}, {}, {}, true)[0];
    auto loss = score + (by_x.norm(2, 1) - 1).pow(2).sum();
    for (const auto& grad : torch::autograd::grad(
             {score}, module->parameters(), {}, {}, true, true)) {
      if (grad.defined()) {
        loss = loss + grad.pow(2).sum();
      }
    }
    loss.backward();
    optimizer.step();
    return x.grad();
  };
  for (int step = 0; step < 50; ++step) {
    const auto data = torch::randn({8, 3}, torch::kDouble);
    const auto expected = train(plain, one, data);
    REQUIRE(close(train(model, many, data), expected, 1e-9, 1e-12));
    REQUIRE(differences(*plain, *net, 1e-9, 1e-12) == Names());
  }
}

TEST_CASE("two forwards before one backward", "[dp]") {
  torch::manual_seed(5);
  Net plain;
  const auto net = clone(plain.ptr());
  DataParallel model(net, on_cpus(2));
  const auto real = torch::randn({6, 1, 8, 8});
  const auto fake = torch::randn({6, 1, 8, 8});
  plain->eval();
  net->eval();
  (plain(real).pow(2).sum() + plain(fake).exp().sum()).backward();
  (model->forward(real).pow(2).sum() + model->forward(fake).exp().sum())
      .backward();
  for (const auto& item : plain->named_parameters()) {
    CHECK(
        close(net->named_parameters()[item.key()].grad(), item.value().grad()));
  }
  // Also in training mode, with an evaluation in between.
  model->train();
  const auto loss = model->forward(real).pow(2).sum();
  {
    const torch::NoGradGuard no_grad;
    model->forward(fake);
  }
  (loss + model->forward(fake).exp().sum()).backward();
}

TEST_CASE("a change before the backward is an error as it is for the module",
          "[dp]") {
  torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 1));
  // Only the clone computes, so the module's own tensors are not in the graph.
  DataParallel model(net, on_cpus(2).chunk_sizes({0, 4}));
  const auto loss = model->forward(torch::ones({4, 3})).sum();
  {
    const torch::NoGradGuard no_grad;
    net->parameters()[2].mul_(2);
  }
  model->forward(torch::ones({4, 3}));
  CHECK_THROWS_WITH(
      loss.backward(),
      Catch::Contains("has been modified by an inplace operation"));
  // Nothing changes after this forward.
  const auto other = model->forward(torch::ones({4, 3})).sum();
  model->forward(torch::ones({4, 3}));
  other.backward();
}

TEST_CASE("gradients accumulate over backward passes", "[dp]") {
  torch::nn::Linear net(3, 1);
  DataParallel model(net, on_cpus(2));
  const auto input = torch::tensor({{1., 2., 3.}, {10., 20., 30.}});
  for (int i = 0; i < 3; ++i) {
    model->forward(input).sum().backward();
  }
  CHECK(net->weight.grad().equal(torch::tensor({{33., 66., 99.}})));
}

/// Uses a for rows below 0, else b, and never c.
struct BranchImpl : torch::nn::Cloneable<BranchImpl> {
  BranchImpl() { reset(); }
  void reset() override {
    for (const char* name : {"a", "b", "c"}) {
      register_parameter(name, torch::ones({1}));
    }
  }
  Tensor forward(const Tensor& x) {
    return x * parameters_[x.min().item<float>() < 0 ? "a" : "b"];
  }
};

TEST_CASE("parameters that are not used by all replicas", "[dp]") {
  auto net = std::make_shared<BranchImpl>();
  DataParallel model(net, on_cpus(3));
  model->forward(torch::tensor({-1., 2., 5.})).sum().backward();
  const auto grad = [&](const char* name) {
    return net->named_parameters()[name].grad();
  };
  CHECK(grad("a").item<float>() == -1);
  CHECK(grad("b").item<float>() == 7);
  CHECK_FALSE(grad("c").defined());
  // A gradient from a replica alone can be zeroed and detached as usual.
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  optimizer.step();
  optimizer.zero_grad(/*set_to_none=*/false);
  CHECK(grad("b").item<float>() == 0);
  model->forward(torch::tensor({1., 2., 5.})).sum().backward();
  CHECK(grad("b").item<float>() == 8);
  auto alone = torch::autograd::grad(
      {model->forward(torch::tensor({-1., 2., -5.})).sum()},
      {net->named_parameters()["b"]})[0];
  CHECK(alone.detach_().item<float>() == 2);
}

TEST_CASE("frozen parameters, also from one step to the next", "[dp]") {
  torch::nn::Linear net(3, 1);
  DataParallel model(net, on_cpus(2));
  const auto input = torch::ones({4, 3});
  const auto gradients = [&] {
    net->zero_grad();
    model->forward(input).sum().backward();
    return std::pair(net->weight.grad().defined(), net->bias.grad().defined());
  };
  CHECK(gradients() == std::pair(true, true));
  net->weight.requires_grad_(false);
  CHECK(gradients() == std::pair(false, true));
  net->weight.requires_grad_(true);
  net->bias.requires_grad_(false);
  CHECK(gradients() == std::pair(true, false));
  net->weight.requires_grad_(false);
  CHECK_FALSE(model->forward(input).requires_grad());
}

TEST_CASE("parameters frozen and thawed between two forwards", "[dp]") {
  const bool freezes = GENERATE(true, false);
  const auto net = lambda(
      [](auto& self, const Tensor& x) {
        return torch::tanh(self.linear(x)) * self.linear->weight;
      },
      3,
      1);
  const auto plain = clone(net);
  DataParallel model(net, on_cpus(3));
  const auto x = torch::rand({7, 3});
  for (int step = 0; step < 3; ++step) {
    const auto losses = [&](const auto& forward, const Tensor& weight) {
      weight.requires_grad_(freezes);
      auto loss = forward(x).pow(2).sum();
      weight.requires_grad_(!freezes);
      return loss + forward(x + 1).sum();
    };
    const auto loss =
        losses([&](const Tensor& y) { return model(y); }, net->linear->weight);
    losses([&](const Tensor& y) { return plain->forward(y); },
           plain->linear->weight)
        .backward();
    loss.backward();
    CHECK(net->linear->weight.grad().defined() ==
          plain->linear->weight.grad().defined());
    if (!freezes) {
      CHECK(close(net->linear->weight.grad(), plain->linear->weight.grad()));
    }
    CHECK(close(net->linear->bias.grad(), plain->linear->bias.grad()));
  }
}

TEST_CASE("parts that replicas compute again", "[dp]") {
  const bool is_module = GENERATE(false, true);
  const auto net = lambda([is_module](auto& self, const Tensor& x) {
    if (is_module) {
      return ddp::checkpoint_activations(self.linear, x);
    }
    return ddp::checkpoint_activations(
        [&self](const Tensor& y) { return self.linear(torch::tanh(y)); }, x);
  });
  const auto plain = clone(net);
  DataParallel model(net, on_cpus(3));
  for (int step = 0; step < 3; ++step) {
    const auto x = torch::rand({7, 3}).requires_grad_();
    const auto y = x.detach().requires_grad_();
    (model(x).pow(2).sum() + model(x + 1).sum()).backward();
    (plain->forward(y).pow(2).sum() + plain->forward(y + 1).sum()).backward();
    CHECK(close(x.grad(), y.grad()));
    CHECK(close(net->linear->weight.grad(), plain->linear->weight.grad()));
    CHECK(close(net->linear->bias.grad(), plain->linear->bias.grad()));
  }
}

TEST_CASE("sparse and dense gradients of one parameter", "[dp]") {
  // Gradients of replicas 0 and 2 are dense.
  struct WordsImpl : torch::nn::Cloneable<WordsImpl> {
    WordsImpl() { reset(); }
    void reset() override {
      weight = register_parameter("weight", torch::ones({4, 2}));
    }
    Tensor forward(const Tensor& x) {
      return x[0].item<int64_t>() % 2 == 0
                 ? weight.index_select(0, x)
                 : torch::embedding(weight, x, -1, false, /*sparse=*/true);
    }
    Tensor weight;
  };
  const auto net = std::make_shared<WordsImpl>();
  DataParallel model(net, on_cpus(4));
  model->forward(torch::arange(4)).sum().backward();
  CHECK(net->weight.grad().equal(torch::ones({4, 2})));
}

/// Two names for one parameter, tied in reset() or after it.
struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
  explicit TiedImpl(bool in_reset) : in_reset(in_reset) {
    reset();
    parameters_["decoder"] = encoder;
    decoder = encoder;
  }
  void reset() override {
    encoder = register_parameter("encoder", torch::ones({3, 3}));
    decoder =
        register_parameter("decoder", in_reset ? encoder : torch::ones({3, 3}));
  }
  Tensor forward(const Tensor& x) {
    return torch::linear(torch::linear(x, encoder), decoder);
  }
  bool in_reset;
  Tensor encoder, decoder;
};

TEST_CASE("shared parameters stay shared in effect", "[dp]") {
  const auto net = std::make_shared<TiedImpl>(GENERATE(true, false));
  REQUIRE(net->encoder.is_same(net->decoder));
  DataParallel model(net, on_cpus(2));
  torch::optim::SGD optimizer(std::vector<Tensor>{net->encoder}, 0.01);
  const auto input = torch::tensor({{1., 1., 1.}, {2., 2., 2.}});
  for (int step = 0; step < 3; ++step) {
    const auto w = net->encoder.detach().clone().requires_grad_();
    const auto expected = torch::linear(torch::linear(input, w), w).sum();
    expected.backward();
    optimizer.zero_grad();
    const auto output = model->forward(input).sum();
    output.backward();
    CHECK(close(output, expected));
    CHECK(close(net->encoder.grad(), w.grad()));
    optimizer.step();
  }
  // One copy per device, not per name.
  model->reset_traffic();
  model->forward(input);
  CHECK(model->traffic()[1].state_bytes == 9 * 4);
}

TEST_CASE("the mean of losses is the loss of the whole batch", "[dp]") {
  torch::manual_seed(6);
  const auto net = lambda([](auto& self, const Tensor& x, const Tensor& y) {
    return torch::mse_loss(self.linear(x), y);
  });
  const auto x = torch::randn({7, 3});
  const auto y = torch::randn({7, 2});
  const auto expected = net->forward(x, y);
  expected.backward();
  const auto gradient = net->linear->weight.grad().clone();
  const auto options =
      GENERATE(on_cpus(2),
               on_cpus(3),
               DataParallelOptions(on_cpus(2).chunk_sizes({1, 6})),
               DataParallelOptions(on_cpus(3).chunk_sizes({0, 1, 6})));
  DataParallel model(net, DataParallelOptions(options).aggregate(mean));
  net->zero_grad();
  const auto loss = model->forward(x, y);
  CHECK(loss.dim() == 0);
  CHECK(close(loss, expected));
  loss.backward();
  CHECK(close(net->linear->weight.grad(), gradient));
}

/// Parameters of several dtypes and layouts.
struct MixedImpl : torch::nn::Cloneable<MixedImpl> {
  MixedImpl() { reset(); }
  void reset() override {
    single = register_parameter("single", torch::full({2, 3}, 2.0));
    twice = register_parameter("twice", torch::full({3}, 3.0, torch::kDouble));
    half = register_parameter("half", torch::full({1}, 0.5, torch::kBFloat16));
    complex = register_parameter(
        "complex",
        torch::full({3}, c10::complex<float>(1, 2), torch::kComplexFloat));
    scalar = register_parameter("scalar", torch::tensor(4.0f));
    empty = register_parameter("empty", torch::empty({0, 3}));
    turned = register_parameter(
        "turned",
        torch::arange(6.0).view({2, 3}).t().detach().requires_grad_());
    steps = register_buffer("steps", torch::tensor(7));
  }
  Tensor forward(const Tensor& x) {
    // A replica's parameter has the module's strides.
    TORCH_CHECK(turned.strides() == at::IntArrayRef({1, 3}));
    const auto y = torch::linear(x, single).sum(1) + steps;
    return y * twice.sum() * scalar * half.to(torch::kFloat) *
               torch::abs(complex).sum() +
           torch::linear(x, turned.t()).sum(1) + empty.sum();
  }
  Tensor single, twice, half, complex, scalar, empty, turned, steps;
};

TEST_CASE("parameters of several types and layouts", "[dp]") {
  const auto plain = std::make_shared<MixedImpl>();
  const auto net = clone(plain);
  DataParallel model(net, on_cpus(3));
  const auto input = torch::randn({6, 3});
  const auto expected = plain->forward(input);
  const auto output = model->forward(input);
  CHECK(close(output, expected));
  expected.sum().backward();
  output.sum().backward();
  for (const auto& item : plain->named_parameters()) {
    INFO(item.key());
    const auto other = net->named_parameters()[item.key()];
    CHECK(close(other.grad(), item.value().grad(), 1e-2));
    CHECK(other.grad().strides() == item.value().grad().strides());
  }
}

TEST_CASE("gradients that share memory are added up apart", "[dp]") {
  // Parameters a and b get the same tensor as their gradient, c gets an
  // expanded one.
  struct SumImpl : torch::nn::Cloneable<SumImpl> {
    SumImpl() { reset(); }
    void reset() override {
      a = register_parameter("a", torch::ones({3}));
      b = register_parameter("b", torch::ones({3}));
      c = register_parameter("c", torch::ones({3}));
    }
    Tensor forward(const Tensor& x) { return x * (a + b) + c.sum(); }
    Tensor a, b, c;
  };
  const auto net = std::make_shared<SumImpl>();
  DataParallel model(net, on_cpus(4));
  model->forward(torch::tensor({{1.}, {20.}, {300.}, {4000.}}).expand({4, 3}))
      .sum()
      .backward();
  CHECK(net->a.grad().equal(torch::full({3}, 4321.0)));
  CHECK(net->b.grad().equal(torch::full({3}, 4321.0)));
  CHECK(net->c.grad().equal(torch::full({3}, 12.0)));
}

TEST_CASE("sparse gradients", "[dp]") {
  const auto embed = [] {
    return torch::nn::Embedding(
        torch::nn::EmbeddingOptions(10, 2).sparse(true));
  };
  auto plain = embed();
  const auto net = clone(plain.ptr());
  DataParallel model(net, on_cpus(3));
  const auto words = torch::tensor({0, 3, 3, 9, 0, 5});
  plain(words).pow(2).sum().backward();
  model->forward(words).pow(2).sum().backward();
  CHECK(net->weight.grad().is_sparse());
  CHECK(close(net->weight.grad().to_dense(), plain->weight.grad().to_dense()));
}

TEST_CASE("a forward that takes gradients by itself", "[dp]") {
  const auto net = lambda([](auto& self, const Tensor& x) {
    const torch::AutoGradMode enable(true);
    const auto score = self.linear(x).pow(2).sum();
    return torch::autograd::grad({score}, {self.linear->weight})[0].unsqueeze(
        0);
  });
  const auto input = torch::randn({4, 3});
  const auto expected = torch::cat(
      {net->forward(input.slice(0, 0, 2)), net->forward(input.slice(0, 2, 4))});
  DataParallel model(net, on_cpus(2));
  CHECK(close(model->forward(input), expected));
  const torch::NoGradGuard no_grad;
  CHECK(close(model->forward(input), expected));
  CHECK(close(test::data_parallel(net, input, cpus(2)), expected));
}

TEST_CASE("many small parameters", "[dp]") {
  // More parameters than one group holds.
  torch::nn::Sequential plain;
  for (int i = 0; i < 100; ++i) {
    plain->push_back(torch::nn::Linear(2, 2));
    torch::nn::init::eye_(
        plain->ptr(static_cast<size_t>(i))->named_parameters()["weight"]);
  }
  const auto net =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone());
  DataParallel model(net, on_cpus(3));
  const auto input = torch::randn({6, 2});
  plain->forward(input).pow(2).sum().backward();
  model->forward(input).pow(2).sum().backward();
  for (const auto& item : plain->named_parameters()) {
    INFO(item.key());
    CHECK(close(net->named_parameters()[item.key()].grad(),
                item.value().grad(),
                1e-3,
                1e-4));
  }
}

TEST_CASE("the graph outlives the wrapper", "[dp]") {
  torch::nn::Linear net(3, 1);
  Tensor loss;
  {
    DataParallel model(net, on_cpus(3));
    loss = model->forward(torch::ones({6, 3})).sum();
  }
  loss.backward();
  CHECK(net->weight.grad().equal(torch::full({1, 3}, 6.0)));
}

TEST_CASE("data_parallel is a forward and no more", "[dp]") {
  Net net;
  const auto images = torch::randn({5, 1, 8, 8});
  net->eval();
  const auto expected = net(images);
  CHECK(close(test::data_parallel(net, images, cpus(2)), expected));
  CHECK(close(test::data_parallel(net.ptr(), images, cpus(3), torch::kCPU, 0),
              expected));
  CHECK(close(test::data_parallel(net, images, cpus(1)), expected));
  // The first replica's changes of buffers remain in the module.
  net->train();
  const auto plain = clone(net.ptr());
  plain->forward(images.slice(0, 0, 3));
  test::data_parallel(net, images, cpus(2));
  CHECK(differences(*plain, *net) == Names());
}

}  // namespace training_test
}  // namespace dp
