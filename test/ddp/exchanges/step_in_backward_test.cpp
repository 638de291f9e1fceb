#include "ddp/exchanges/step_in_backward.h"

#include <ATen/ops/embedding.h>
#include <torch/optim/lbfgs.h>

#include "ddp/amp/grad_scaler.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/check_finite.h"
#include "ddp/exchanges/switch_exchange.h"
#include "ddp/exchanges/weighted_mean.h"
#include "ddp/optim/post_local_sgd_optimizer.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "ddp/reducer.h"
#include "test/ddp/optim/optimizers.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/fake_exchange.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace step_in_backward_test {

using Catch::Contains;
using test::copies;
using test::equal;
using test::FakeBackend;
using test::FakeExchange;
using test::Group;
using test::Groups;
using test::make_optimizer;
using test::numbers;
using test::run_ranks;
using test::Tensors;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

std::vector<NamedParameter> named(const Tensors& params) {
  std::vector<NamedParameter> result;
  for (size_t i = 0; i < params.size(); ++i) {
    result.push_back({"p" + std::to_string(i), params[i]});
  }
  return result;
}

/// Three linear layers; the first is used twice.
Tensor loss_of(const Tensors& params, int seed) {
  auto x = numbers({3, 4}, seed);
  for (const size_t i : {0, 1, 0, 2}) {
    x = (x.matmul(params[2 * i]) + params[2 * i + 1]).tanh();
  }
  return x.sum();
}

Tensors layers() {
  return test::parameters({{4, 4}, {4}, {4, 4}, {4}, {4, 4}, {4}});
}

/// Returns options with buckets of one layer or less.
Options small_buckets() {
  return Options().bucket_cap_mb(5e-5).first_bucket_cap_mb(5e-5);
}

TEST_CASE("a step in backward is that after it, bit for bit",
          "[exchange][in_backward]") {
  const int size = GENERATE(1, 2, 3);
  const auto kind = GENERATE(
      as<std::string>(), "sgd", "adam", "rmsprop", "fused sgd", "fused adamw");
  CAPTURE(size, kind);
  run_ranks(size, [&](const Group& group) {
    const auto params = layers();
    const auto reference = layers();
    const auto split = [](const Tensors& all) {
      Groups groups{Tensors(all.begin(), all.begin() + 3),
                    Tensors(all.begin() + 3, all.end())};
      return groups;
    };
    const auto optimizer = make_optimizer(kind, split(params));
    const auto after = make_optimizer(kind, split(reference));
    Reducer plain(named(reference), group, small_buckets());
    Reducer reducer(named(params),
                    group,
                    small_buckets().exchange(
                        std::make_shared<StepInBackward>(*optimizer, group)));
    for (int step = 0; step < 6; ++step) {
      for (auto* each : {optimizer.get(), after.get()}) {
        each->zero_grad(/*set_to_none=*/step % 2 == 0);
        each->param_groups()[1].options().set_lr(0.01 * (step + 1));
      }
      const int seed = 10 * step + group->getRank();
      reducer.arm();
      loss_of(params, seed).backward();
      plain.arm();
      loss_of(reference, seed).backward();
      after->step();
      TORCH_CHECK(equal(params, reference), "in step ", step);
    }
    TORCH_CHECK(plain.plan().size() > 2);
    TORCH_CHECK(optimizer->param_groups()[0].params().size() == 3);
  });
}

TEST_CASE("a bucket is stepped while the next one travels",
          "[exchange][in_backward]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  const auto params = layers();
  const auto before = copies(params);
  torch::optim::SGD optimizer(params, 1.0);
  const auto inner = std::make_shared<FakeExchange>();
  std::vector<size_t> stepped;  // changed parameters, by call
  const auto count = [&](const GradientBucket&) {
    stepped.push_back(0);
    for (size_t i = 0; i < params.size(); ++i) {
      stepped.back() += !torch::equal(params[i], before[i]);
    }
  };
  Reducer reducer(named(params),
                  group,
                  small_buckets().exchange(
                      std::make_shared<StepInBackward>(optimizer, inner)));
  const auto pass = [&] {
    optimizer.zero_grad();
    reducer.arm();
    loss_of(params, 1).backward();
  };
  pass();  // makes the plan
  const size_t buckets = reducer.plan().size();
  REQUIRE(buckets > 2);
  inner->take_calls();
  for (size_t i = 0; i < params.size(); ++i) {
    const c10::NoGradGuard no_grad;
    params[i].copy_(before[i]);
  }
  inner->on_start = count;
  inner->on_finish = count;
  pass();
  std::vector<std::string> calls{"start 0"};
  std::vector<size_t> expected{0};
  for (size_t i = 1; i < buckets; ++i) {
    calls.push_back("start " + std::to_string(i));
    calls.push_back("finish " + std::to_string(i - 1));
    const size_t so_far =
        expected.back() + (i > 1 ? reducer.plan()[i - 2].size() : 0);
    expected.push_back(so_far);
    expected.push_back(so_far);
  }
  calls.push_back("finish " + std::to_string(buckets - 1));
  expected.push_back(expected.back() + reducer.plan()[buckets - 2].size());
  CHECK(inner->take_calls() == calls);
  CHECK(stepped == expected);
}

TEST_CASE("passes without an exchange step nothing, and add up",
          "[exchange][in_backward]") {
  run_ranks(2, [&](const Group& group) {
    const auto params = layers();
    const auto reference = layers();
    torch::optim::SGD optimizer(params, 0.1);
    torch::optim::SGD after(reference, 0.1);
    Reducer reducer(named(params),
                    group,
                    small_buckets().exchange(
                        std::make_shared<StepInBackward>(optimizer, group)));
    Reducer plain(named(reference), group, small_buckets());
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      after.zero_grad();
      for (const bool syncs : {false, true}) {
        const int seed = 20 * step + 10 * syncs + group->getRank();
        if (syncs) {
          reducer.arm();
          plain.arm();
        }
        loss_of(params, seed).backward();
        loss_of(reference, seed).backward();
      }
      after.step();
      TORCH_CHECK(equal(params, reference));
    }
  });
}

TEST_CASE("a parameter that a rank has not used is stepped as on the others",
          "[exchange][in_backward]") {
  const int size = GENERATE(2, 3);
  const bool stays_stale = GENERATE(true, false);
  run_ranks(size, [&](const Group& group) {
    const auto params = test::parameters({{3}, {3}, {3}});
    const auto before = copies(params);
    torch::optim::SGD optimizer(params, 1.0);
    Reducer reducer(named(params),
                    group,
                    small_buckets().find_unused_parameters(true).exchange(
                        std::make_shared<StepInBackward>(optimizer, group)));
    if (stays_stale) {
      params[1].mutable_grad() = torch::full({3}, 0.0);
      params[2].mutable_grad() = torch::full({3}, group->getRank() + 1.0);
    }
    const double stale_mean = stays_stale ? (size + 1) / 2.0 : 0;
    // Only rank 0 uses parameter 1; no rank uses parameter 2.
    auto loss = params[0].sum();
    if (group->getRank() == 0) {
      loss = loss + size * params[1].sum();
    }
    reducer.arm();
    reducer.watch(loss);
    loss.backward();
    TORCH_CHECK(torch::allclose(params[0], before[0] - 1));
    TORCH_CHECK(torch::allclose(params[1], before[1] - 1));
    TORCH_CHECK(torch::allclose(params[2], before[2] - stale_mean));
    TORCH_CHECK(params[1].grad().eq(1).all().item<bool>());
    TORCH_CHECK(params[2].grad().defined() == stays_stale);
    TORCH_CHECK(!stays_stale ||
                params[2].grad().eq(group->getRank() + 1.0).all().item<bool>());
  });
}

TEST_CASE("sparse gradients are stepped in backward",
          "[exchange][in_backward][sparse]") {
  run_ranks(2, [&](const Group& group) {
    auto table = torch::zeros({6, 2}).requires_grad_();
    auto weight = torch::zeros({2}).requires_grad_();
    torch::optim::SGD optimizer(Tensors{table, weight}, 1.0);
    Reducer reducer({{"table", table, /*sparse=*/true}, {"weight", weight}},
                    group,
                    small_buckets().exchange(
                        std::make_shared<StepInBackward>(optimizer, group)));
    for (int step = 1; step <= 3; ++step) {
      optimizer.zero_grad();
      const auto row = torch::tensor({int64_t{group->getRank()}});
      const auto found = torch::embedding(table, row, -1, false, true);
      reducer.arm();
      (found.sum() * 2 + weight.sum()).backward();
      auto expected = torch::zeros({6, 2});
      expected.slice(0, 0, 2).fill_(-step);
      TORCH_CHECK(torch::equal(table, expected), table);
      TORCH_CHECK(weight.eq(-step).all().item<bool>());
    }
  });
}

TEST_CASE("a frozen parameter is not stepped in backward",
          "[exchange][in_backward]") {
  run_ranks(2, [&](const Group& group) {
    const auto params = layers();
    torch::optim::SGD optimizer(params, 0.1);
    Reducer reducer(named(params),
                    group,
                    small_buckets().exchange(
                        std::make_shared<StepInBackward>(optimizer, group)));
    reducer.arm();
    loss_of(params, 1).backward();
    const auto before = copies(params);
    params[2].requires_grad_(false);  // keeps its gradient
    reducer.arm();
    loss_of(params, 2).backward();
    TORCH_CHECK(torch::equal(params[2], before[2]));
    TORCH_CHECK(!torch::equal(params[3], before[3]));
  });
}

TEST_CASE("an exchange runs in a world of one", "[exchange][in_backward]") {
  const int size = GENERATE(1, 2);
  run_ranks(size, [&](const Group& group) {
    torch::nn::Linear net(4, 3);
    const c10::NoGradGuard no_grad;
    net->weight.zero_();
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    DistributedDataParallel model(
        net,
        Options().process_group(group).exchange(
            std::make_shared<StepInBackward>(optimizer, group)));
    TORCH_CHECK((model->process_group() == nullptr) == (size == 1));
    for (int step = 1; step <= 3; ++step) {
      const at::AutoGradMode with_grad(true);
      optimizer.zero_grad();
      model->forward(torch::ones({1, 4})).sum().backward();
      TORCH_CHECK(net->weight.eq(-step).all().item<bool>(), net->weight);
    }
    if (size > 1) {
      return;
    }
    // Without an exchange, a model of one rank has no reducer; with one, it
    // gets one again.
    const auto step_with = [&](std::shared_ptr<Exchange> exchange) {
      model->update_process_group(group, std::move(exchange));
      const at::AutoGradMode with_grad(true);
      optimizer.zero_grad();
      model->forward(torch::ones({1, 4})).sum().backward();
      TORCH_CHECK(net->weight.grad().eq(1).all().item<bool>());
    };
    step_with(nullptr);
    TORCH_CHECK(net->weight.eq(-3).all().item<bool>(), net->weight);
    step_with(std::make_shared<StepInBackward>(optimizer, group));
    TORCH_CHECK(net->weight.eq(-4).all().item<bool>(), net->weight);
    step_with(std::make_shared<StepInBackward>(optimizer, group));
    TORCH_CHECK(net->weight.eq(-5).all().item<bool>(), net->weight);
  });
}

TEST_CASE("exchanges that change gradients take no step inside",
          "[exchange][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  torch::nn::Linear net(4, 3);
  torch::optim::SGD optimizer(net->parameters(), 1.0);
  const auto inside = std::make_shared<CheckFinite>(
      std::make_shared<StepInBackward>(optimizer, group), group);
  CHECK_THROWS_WITH(
      WeightedMean(inside, group),
      Contains("Expected a StepInBackward around the WeightedMean"));
  CHECK_THROWS_WITH(
      CastExchange(inside, torch::kHalf),
      Contains("Expected a StepInBackward around the CastExchange"));
  CHECK_NOTHROW(StepInBackward(
      optimizer, std::make_shared<CastExchange>(group, torch::kHalf)));
}

TEST_CASE("an exchange without a process group is refused",
          "[exchange][errors]") {
  torch::nn::Linear net(4, 3);
  const auto exchange =
      std::make_shared<AllReduce>(c10::make_intrusive<FakeBackend>(1));
  CHECK_THROWS_WITH(DistributedDataParallel(net, Options().exchange(exchange)),
                    Contains("call ddp::init_process_group()"));
}

TEST_CASE("local passes step nothing, also within another exchange",
          "[exchange][in_backward]") {
  const int kind = GENERATE(0, 1, 2, 3);
  run_ranks(2, [&](const Group& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(4, 3).bias(false));
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    const auto stepper = std::make_shared<StepInBackward>(optimizer, group);
    std::shared_ptr<Exchange> outer = stepper;
    if (kind > 0) {
      outer = std::make_shared<CheckFinite>(stepper, group);
    }
    if (kind > 1) {
      const auto later = kind == 2 ? outer : std::make_shared<AllReduce>(group);
      outer = std::make_shared<SwitchExchange>(stepper, 1, later);
    }
    DistributedDataParallel model(
        net, Options().process_group(group).exchange(outer));
    const auto pass = [&] {
      model->forward(torch::full({1, 4}, group->getRank() + 1.0))
          .sum()
          .backward();
    };
    const auto before = net->weight.detach().clone();
    {
      const NoSyncGuard no_sync(*model);
      pass();
    }
    TORCH_CHECK(net->weight.equal(before));
    pass();
    TORCH_CHECK(net->weight.allclose(before - 3), net->weight, before);
  });
}

TEST_CASE("an exchange within others serves one model at a time",
          "[exchange][in_backward]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  const auto one = test::parameters({{3}});
  const auto two = test::parameters({{3}});
  const auto inner = std::make_shared<AllReduce>(group);
  const auto claim = [&](const Tensors& params) {
    return Reducer(
        named(params),
        group,
        Options().exchange(std::make_shared<CheckFinite>(inner, group)));
  };
  {
    const auto first = claim(one);
    CHECK_THROWS_WITH(claim(two), Contains("one that another model"));
    CHECK_THROWS_WITH(Reducer(named(two), group, Options().exchange(inner)),
                      Contains("one that another model"));
  }
  claim(two);
  Reducer(named(two), group, Options().exchange(inner));
}

TEST_CASE("a scaler refuses an optimizer that steps in backward",
          "[exchange][in_backward][grad_scaler]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  const auto weight = torch::zeros({3}).requires_grad_();
  torch::optim::SGD optimizer(Tensors{weight}, 1.0);
  GradScaler scaler;
  {
    const StepInBackward stepper(optimizer, group);
    scaler.scale(weight.sum()).backward();
    CHECK_THROWS_WITH(scaler.step(optimizer),
                      Contains("that a StepInBackward steps"));
    CHECK_THROWS_WITH(scaler.unscale_(optimizer),
                      Contains("that a StepInBackward steps"));
  }
  CHECK(scaler.step(optimizer));
}

TEST_CASE("an optimizer that steps all at once does not step in backward",
          "[exchange][in_backward]") {
  const auto group = c10::make_intrusive<FakeBackend>(1);
  const auto params = layers();
  torch::optim::LBFGS lbfgs(params);
  CHECK_THROWS_WITH(StepInBackward(lbfgs, group), Contains("got LBFGS"));
  ZeroRedundancyOptimizer sharded(params, [](const Groups& groups) {
    return make_optimizer("sgd", groups);
  });
  CHECK_THROWS_WITH(StepInBackward(sharded, group),
                    Contains("got a ZeroRedundancyOptimizer"));
  PostLocalSGDOptimizer<torch::optim::SGD> averaged(
      std::make_shared<ModelAverager>(ModelAveragerOptions(2)), params, 0.1);
  CHECK_THROWS_WITH(StepInBackward(averaged, group),
                    Contains("got a PostLocalSGDOptimizer"));
  torch::optim::SGD sgd(params, 0.1);
  CHECK_THROWS_WITH(StepInBackward(sgd, std::shared_ptr<Exchange>()),
                    Contains("got none"));
}

}  // namespace step_in_backward_test
}  // namespace ddp
