// Which backward passes count as common to all ranks, and the errors if ranks
// make different passes.
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/hook_exchange.h"
#include "ddp/exchanges/no_exchange.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace passes_test {

using Catch::Contains;
using test::FakeBackend;
using test::Group;
using test::run_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

Options over(const Group& group) {
  return Options().process_group(group);
}

/// y = a * x + b; both parameters have one element.
struct LineImpl : torch::nn::Module {
  LineImpl() {
    a = register_parameter("a", torch::ones({1}, torch::kDouble));
    b = register_parameter("b", torch::ones({1}, torch::kDouble));
  }
  Tensor forward(const Tensor& x) { return a * x + b; }
  Tensor a, b;
};
TORCH_MODULE(Line);

Tensor number(double value) {
  return torch::full({1}, value, torch::kDouble);
}

void expect(const Tensor& tensor, double value) {
  TORCH_CHECK(tensor.defined() && tensor.item<double>() == value,
              "Expected ",
              value,
              ", but got ",
              tensor);
}

double mean_rank(const Group& group) {
  return (group->getSize() - 1) / 2.0;
}

TEST_CASE("a pass that accumulates nothing communicates nothing", "[passes]") {
  const bool finds_unused = GENERATE(false, true);
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  Line net;
  DistributedDataParallel model(
      net, over(backend).find_unused_parameters(finds_unused));
  backend->take_calls();
  auto x = number(3).requires_grad_();
  SECTION("the gradient of the input") {
    const auto grad = torch::autograd::grad({model(x)}, {x})[0];
    CHECK(grad.item<double>() == 1);
    CHECK(backend->take_calls().empty());
  }
  SECTION("the gradients of the parameters, for the caller alone") {
    torch::autograd::grad({model(x)}, net->parameters());
    CHECK(backend->take_calls().empty());
    CHECK(!net->a.grad().defined());
  }
  SECTION("backward into the input alone") {
    torch::autograd::backward({model(x)}, {}, false, false, {x});
    CHECK(x.grad().item<double>() == 1);
    CHECK(backend->take_calls().empty());
  }
  SECTION("through frozen parameters, thawed before the pass or after it") {
    const bool before = GENERATE(false, true);
    net->a.requires_grad_(false);
    net->b.requires_grad_(false);
    const auto y = model(x);
    if (before) {
      net->a.requires_grad_();
      net->b.requires_grad_();
    }
    y.backward();
    CHECK(x.grad().item<double>() == 1);
    CHECK(backend->take_calls().empty());
  }
  SECTION("under a guard, though it accumulates") {
    const NoSyncGuard no_sync(*model);
    model->module()->forward(x).backward();
    CHECK(backend->take_calls().empty());
  }
}

TEST_CASE("a rank makes passes alone under a guard", "[passes]") {
  const bool finds_unused = GENERATE(false, true);
  const int alone = GENERATE(0, 1);
  run_ranks(3, [&](const Group& group) {
    Line net;
    DistributedDataParallel model(
        net, over(group).find_unused_parameters(finds_unused));
    for (int step = 1; step <= 4; ++step) {
      if (group->getRank() == alone) {
        const NoSyncGuard no_sync(*model);
        auto x = number(2).requires_grad_();
        torch::autograd::grad({model(x)}, {x});
        net->zero_grad();
        model->module()->forward(x).backward();
        expect(net->a.grad(), 2);
        expect(net->b.grad(), 1);
      }
      net->zero_grad();
      model(number(step * group->getRank())).backward();
      expect(net->a.grad(), step * mean_rank(group));
      expect(net->b.grad(), 1);
    }
  });
}

TEST_CASE("a pass into some parameters misses the others", "[passes]") {
  Line net;
  DistributedDataParallel model(net, over(c10::make_intrusive<FakeBackend>(2)));
  CHECK_THROWS_WITH(
      torch::autograd::backward({model(number(3))}, {}, false, false, {net->a}),
      Contains("got none on rank 0: b;"));
}

TEST_CASE("one rank alone may ask for gradients that are not accumulated",
          "[passes]") {
  const bool finds_unused = GENERATE(false, true);
  const int asks = GENERATE(0, 1);
  run_ranks(3, [&](const Group& group) {
    Line net;
    DistributedDataParallel model(
        net, over(group).find_unused_parameters(finds_unused));
    for (int step = 1; step <= 4; ++step) {
      if (group->getRank() == asks) {
        auto x = number(2).requires_grad_();
        torch::autograd::grad({model(x)}, {x});
      }
      net->zero_grad();
      model(number(step * group->getRank())).backward();
      expect(net->a.grad(), step * mean_rank(group));
      expect(net->b.grad(), 1);
    }
  });
}

// loss = y^2 + x (dy/dx)^2 with y = a x + b and x = rank + 1. Its gradients are
// 2 y x + 2 a x and 2 y; y is 2 on rank 0 and 3 on rank 1.
TEST_CASE("a gradient penalty", "[passes]") {
  const bool apart = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    Line net;
    // The penalty alone has no gradient for b.
    DistributedDataParallel model(net,
                                  over(group).find_unused_parameters(apart));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      auto x = number(group->getRank() + 1).requires_grad_();
      const auto y = model(x);
      const auto slope = torch::autograd::grad(
          {y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
      const auto penalty = number(group->getRank() + 1) * slope.pow(2);
      if (apart) {
        y.pow(2).backward({}, /*retain_graph=*/true);
        penalty.backward();
      } else {
        (y.pow(2) + penalty).backward();
      }
      expect(net->a.grad(), (2 * 2 * 1 + 2 * 3 * 2) / 2.0 + 2 * 1.5);
      expect(net->b.grad(), (2 * 2 + 2 * 3) / 2.0);
    }
  });
}

std::shared_ptr<Exchange> local_exchange(bool is_hook) {
  if (is_hook) {
    return std::make_shared<HookExchange>(
        [](const auto& bucket) { return bucket.payload; });
  }
  return std::make_shared<NoExchange>();
}

TEST_CASE("ranks with gradients of their own may differ in their steps",
          "[passes]") {
  const bool is_hook = GENERATE(false, true);
  run_ranks(3, [is_hook](const Group& group) {
    Line net;
    DistributedDataParallel model(
        net, over(group).exchange(local_exchange(is_hook)));
    torch::optim::SGD optimizer(model->parameters(), 1);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      model(number(1)).mul(step == 2 ? group->getRank() : 1).backward();
      optimizer.step();
    }
    expect(net->a, 1 - 3 - group->getRank());
  });
}

TEST_CASE("several passes for each step are no difference", "[passes]") {
  run_ranks(2, [](const Group& group) {
    Line net;
    DistributedDataParallel model(net, over(group));
    torch::optim::SGD optimizer(model->parameters(), 1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      for (int pass = 0; pass <= step; ++pass) {
        model(number(group->getRank())).backward();
      }
      optimizer.step();
    }
    expect(net->a, 1 - (1 + 2 + 3) * 0.5);
  });
}

TEST_CASE("a parameter that was frozen when wrapped stays so", "[passes]") {
  Line net;
  net->a.requires_grad_(false);
  DistributedDataParallel model(net, over(c10::make_intrusive<FakeBackend>(2)));
  model(number(1)).backward();
  net->a.requires_grad_();
  CHECK_THROWS_WITH(model(number(1)),
                    Contains("Expected parameter a to stay frozen"));
  const torch::NoGradGuard no_grad;
  CHECK_NOTHROW(model(number(1)));
}

TEST_CASE("a forward without a backward pass has no effect on the next pass",
          "[passes]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  Line net;
  DistributedDataParallel model(net, over(backend));
  backend->take_calls();
  model(number(1));  // without a backward pass
  {
    NoSyncGuard no_sync(*model);
    model(number(1)).backward();
  }
  CHECK(backend->take_calls().empty());
}

/// Adds its inputs to a buffer, in training mode only.
struct CounterImpl : torch::nn::Module {
  CounterImpl() {
    weight = register_parameter("weight", torch::ones({1}, torch::kDouble));
    seen = register_buffer("seen", torch::zeros({1}, torch::kDouble));
  }
  Tensor forward(const Tensor& x) {
    if (is_training()) {
      seen.add_(x.detach());
    }
    return weight * x;
  }
  Tensor weight, seen;
};
TORCH_MODULE(Counter);

TEST_CASE("a rank may evaluate alone, with buffers", "[passes]") {
  const int evaluates = GENERATE(0, 1);
  const bool by_wrapper = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    Counter net;
    DistributedDataParallel model(net, over(group));
    const double x = group->getRank() + 1;
    const auto set_training = [&](bool on) {
      by_wrapper ? model->train(on) : net->train(on);
    };
    for (int step = 1; step <= 4; ++step) {
      auto loss = model(number(x));
      expect(net->seen, step - 1 + x);
      loss.backward();
      expect(net->seen, step);  // rank 0's buffer
      if (group->getRank() == evaluates) {
        set_training(false);
        for (int batch = 0; batch < 3; ++batch) {
          const torch::AutoGradMode grad_mode(batch == 0);
          model(number(5));
          expect(net->seen, step);
        }
        set_training(true);
      }
    }
  });
}

TEST_CASE("a tied parameter is listed once and stepped once", "[passes]") {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      first = register_parameter("first", torch::ones({1}, torch::kDouble));
      second = register_parameter("second", first);
    }
    Tensor forward(const Tensor& x) { return first * x + second; }
    Tensor first, second;
  };
  const int size = GENERATE(1, 2);
  run_ranks(size, [](const Group& group) {
    const auto tied = std::make_shared<TiedImpl>();
    DistributedDataParallel model(tied, over(group));
    TORCH_CHECK(model->parameters().size() == 1);
    TORCH_CHECK(model->parameters(/*recurse=*/false).empty());
    torch::optim::SGD optimizer(model->parameters(), 1);
    model(number(1)).backward();
    optimizer.step();
    expect(tied->second, 1 - 2);
  });
}

}  // namespace passes_test
}  // namespace ddp
