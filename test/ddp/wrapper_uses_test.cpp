// The wrapper in containers, several wrappers, other entry points, and a new
// wrapper after a failure.
#include <sstream>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <c10/util/ScopeExit.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace wrapper_uses_test {

using Catch::Contains;
using test::FakeBackend;
using test::Group;
using test::run_ranks;
using torch::Tensor;
using torch::nn::AnyModule;
using torch::nn::Linear;
using torch::nn::Sequential;
using Options = DistributedDataParallelOptions;

Options over(const Group& group) {
  return Options().process_group(group);
}

Tensor number(double value) {
  return torch::full({1, 1}, value, torch::kDouble);
}

void expect(const Tensor& tensor, double value) {
  TORCH_CHECK(tensor.defined() && tensor.allclose(number(value)),
              "Expected ",
              value,
              ", but got ",
              tensor);
}

/// y = weight * x, with the weight 1.
Linear line() {
  Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
  linear->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  linear->weight.fill_(1);
  return linear;
}

/// A wrapper that declares the types of its forward, for containers.
struct LineModelImpl : DistributedDataParallelImpl<torch::nn::LinearImpl> {
  using DistributedDataParallelImpl::DistributedDataParallelImpl;
  Tensor forward(Tensor x) {
    return DistributedDataParallelImpl::forward(std::move(x));
  }
};
TORCH_MODULE(LineModel);

double mean_input(const Group& group) {
  return (group->getSize() + 1) / 2.0;
}

TEST_CASE("a wrapper in a Sequential averages its own gradients",
          "[ddp][containers]") {
  const int size = GENERATE(1, 2, 3);
  run_ranks(size, [&](const Group& group) {
    const auto before = line();
    const auto inner = line();
    Sequential net(before);
    net->push_back("model", LineModel(inner, over(group)));
    net->push_back(
        torch::nn::Functional([](const Tensor& x) { return x.exp2(); }));
    const double x = group->getRank() + 1;
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      // The incoming gradient divides d/dw of 2^(w x) by 2^x ln 2, so that the
      // gradient is x.
      net->forward(number(x)).backward(number(std::exp2(-x) / std::log(2)));
      expect(inner->weight.grad(), mean_input(group));
      expect(before->weight.grad(), x);
    }
  });
}

TEST_CASE("a wrapper in an AnyModule", "[ddp][containers]") {
  run_ranks(2, [](const Group& group) {
    const auto inner = line();
    AnyModule any(LineModel(inner, over(group)));
    any.forward(number(group->getRank() + 1)).backward();
    expect(inner->weight.grad(), 1.5);
    TORCH_CHECK(any.get<LineModel>()->module().get() == inner.get());
  });
}

struct ScaleImpl : torch::nn::Module {
  ScaleImpl() {
    weight = register_parameter("weight", torch::ones({1, 1}, torch::kDouble));
  }
  Tensor forward(Tensor x, int64_t times = 2, bool negative = false) {
    return weight * x * (negative ? -times : times);
  }
  Tensor weight;
};

TEST_CASE("default arguments are the module's", "[ddp][containers]") {
  const auto inner = std::make_shared<ScaleImpl>();
  DistributedDataParallel model(inner,
                                over(c10::make_intrusive<FakeBackend>(2)));
  expect(model->forward(number(1)), 2);
  expect(model(number(1), 3), 3);
  expect((*model).forward(number(1), 3, true), -3);
}

struct ManyImpl : torch::nn::Module {
  ManyImpl() { weight = register_parameter("weight", torch::ones({1, 1})); }
  Tensor forward(const Tensor& x) const { return weight * x; }
  Tensor forward(double x) const { return weight * x; }
  template <typename T>
  Tensor forward(const std::vector<T>& x) {
    return weight * x[0];
  }
  Tensor weight;
};

TEST_CASE("forwards of no one type are wrapped, too", "[ddp][containers]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  DistributedDataParallel many(std::make_shared<ManyImpl>(), over(backend));
  CHECK(many(2.0).item<float>() == 2);
  CHECK(many(torch::ones({1, 1})).item<float>() == 1);
  CHECK(many(std::vector<int>{3}).item<float>() == 3);
}

TEST_CASE("a container's file and conversions go through the wrapper",
          "[ddp][containers]") {
  Sequential net(line(), LineModel(line()));
  Sequential other(line(), LineModel(line()));
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.fill_(7);
    }
  }
  std::stringstream file;
  torch::save(net, file);
  torch::load(other, file);
  for (const auto& parameter : other->parameters()) {
    expect(parameter, 7);
  }
  Sequential plain(line(), line());  // the same keys, without a wrapper
  file.seekg(0);
  torch::load(plain, file);
  expect(plain->parameters()[1], 7);
  CHECK_THROWS_WITH(net->to(torch::kFloat), Contains("then wrap it"));
}

/// Two layers with separate entry points.
struct CoderImpl : torch::nn::Module {
  CoderImpl()
      : encoder(register_module("encoder", line())),
        decoder(register_module("decoder", line())) {}
  Tensor forward(const Tensor& x) { return decode(encode(x)); }
  Tensor encode(const Tensor& x) { return encoder(x); }
  std::vector<Tensor> decode_all(const Tensor& x, int64_t count) {
    return std::vector<Tensor>(count, decode(x));
  }
  Tensor decode(const Tensor& x) { return decoder(x); }
  Linear encoder, decoder;
};
TORCH_MODULE(Coder);

TEST_CASE("a forward by another name is averaged", "[ddp]") {
  const int size = GENERATE(1, 2, 3);
  run_ranks(size, [](const Group& group) {
    Coder net;
    DistributedDataParallel model(net, over(group));
    const double x = group->getRank() + 1;
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const auto code = model->module()->encode(number(x));
      const auto all = model->module()->decode_all(code, 2);
      const auto last = model->module()->decode(code) * 3;
      (all[0] + all[1] + last).backward();
      expect(net->encoder->weight.grad(), 5 * mean_input(group));
      expect(net->decoder->weight.grad(), 5 * mean_input(group));
    }
  });
}

/// A class with the wrapper as a member. Its type has to be written out.
struct Trainer {
  DistributedDataParallel<Coder> model{nullptr};
};

Tensor of_holder(DistributedDataParallel<Coder>& model, const Tensor& x) {
  return model(x);
}
Tensor of_module(DistributedDataParallel<CoderImpl>& model, const Tensor& x) {
  return model->forward(x);
}

TEST_CASE("a wrapper fits functions that name the holder or the module",
          "[ddp][containers]") {
  const auto group = c10::make_intrusive<FakeBackend>(1);
  const Coder net;
  DistributedDataParallel deduced(net, over(group));
  static_assert(
      std::is_same_v<decltype(deduced), DistributedDataParallel<Coder>>);
  expect(of_holder(deduced, number(2)), 2);
  expect(of_module(deduced, number(2)), 2);
  DistributedDataParallel shared(net.ptr(), over(group));
  static_assert(
      std::is_same_v<decltype(shared), DistributedDataParallel<CoderImpl>>);
  expect(of_module(shared, number(2)), 2);
  const DistributedDataParallel<CoderImpl> copy = deduced;
  CHECK(copy.ptr() == deduced.ptr());
  auto same = deduced;
  CHECK(same.ptr() == deduced.ptr());
}

TEST_CASE("a wrapper's type may name the holder", "[ddp][containers]") {
  static_assert(std::is_same_v<
                decltype(DistributedDataParallel<Coder>(nullptr)->module()),
                const std::shared_ptr<CoderImpl>&>);
  const int size = GENERATE(1, 2);
  run_ranks(size, [](const Group& group) {
    const Coder net;
    Trainer trainer;
    trainer.model = DistributedDataParallel<Coder>(net, over(group));
    DistributedDataParallel<Linear> other(line(), over(group));
    torch::optim::SGD optimizer(trainer.model->parameters(), 0.25);
    double weight = 1;  // of the encoder and the decoder
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      trainer.model(number(group->getRank() + 1)).backward();
      expect(net->encoder->weight.grad(), weight * mean_input(group));
      optimizer.step();
      weight -= 0.25 * weight * mean_input(group);
      expect(net->decoder->weight, weight);
    }
    other(number(group->getRank() + 1)).backward();
    expect(other->module()->weight.grad(), mean_input(group));
    const ddp::NoSyncGuard guard(*trainer.model);
  });
}

// loss_d = D(x) - D(G(z)) and loss_g = D(G(z)) with G(z) = g z, D(x) = d x.
TEST_CASE("several models take turns", "[ddp][models]") {
  const int size = GENERATE(2, 3);
  const bool freezes = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    const auto g = line();
    const auto d = line();
    DistributedDataParallel generator(g, over(group));
    DistributedDataParallel judge(d, over(group));
    torch::optim::SGD steps_g(generator->parameters(), 0.01);
    torch::optim::SGD steps_d(judge->parameters(), 0.01);
    double expected_g = 1;
    double expected_d = 1;
    const double x = 2 * mean_input(group);  // the mean of 2 (rank + 1)
    const double z = mean_input(group);
    for (int step = 0; step < 4; ++step) {
      const double rank = group->getRank() + 1;
      d->weight.requires_grad_();
      steps_d.zero_grad();
      const auto fake = generator(number(rank));
      (judge(number(2 * rank)) - judge(fake.detach())).backward();
      steps_d.step();
      expected_d -= 0.01 * (x - expected_g * z);
      expect(d->weight, expected_d);

      d->weight.requires_grad_(!freezes);
      steps_g.zero_grad();
      judge(fake).backward();
      steps_g.step();
      expected_g -= 0.01 * expected_d * z;
      expect(g->weight, expected_g);
    }
  });
}

TEST_CASE("a module is wrapped again after all ranks have failed alike",
          "[ddp][again]") {
  const int size = GENERATE(2, 3);
  run_ranks(size, [&](const Group& group) {
    Coder net;
    std::string error;
    try {
      DistributedDataParallel model(net, over(group));
      model->module()->encode(number(1)).backward();
    } catch (const c10::Error& thrown) {
      error = thrown.what();
    }
    TORCH_CHECK(error.find("decoder.weight") != std::string::npos, error);
    DistributedDataParallel model(net, over(group));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      model(number(group->getRank() + 1)).backward();
      expect(net->encoder->weight.grad(), mean_input(group));
      expect(net->decoder->weight.grad(), mean_input(group));
    }
  });
}

}  // namespace wrapper_uses_test
}  // namespace ddp
