#include "ddp/amp/grad_scaler.h"

#include <cmath>

#include <ATen/ops/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "test/ddp/amp/scaled_toy.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"
#include "test/support/state_dict.h"

namespace ddp {
namespace grad_scaler_test {

using test::FakeBackend;
using test::Group;
using test::kInf;
using test::kNan;
using test::run_ranks;
using test::small_scaler;
using test::Toy;
using torch::Tensor;
using torch::optim::SGD;
using Options = GradScalerOptions;

TEST_CASE("the scale grows after good steps and backs off after a bad one",
          "[grad_scaler]") {
  GradScaler scaler(small_scaler().growth_factor(4).backoff_factor(0.25));
  Toy toy;
  double weight = 0;
  const auto train = [&](double slope) {
    const bool is_good = std::isfinite(slope);
    CHECK(toy.train(scaler, slope) == is_good);
    weight -= is_good ? slope : 0;
    CHECK(toy.holds(weight));
    return scaler.get_scale();
  };
  CHECK(train(1) == 8);
  CHECK(train(2) == 8);
  CHECK(train(3) == 32);
  CHECK(train(1) == 32);
  CHECK(train(1) == 32);
  CHECK(train(kInf) == 8);  // counts from the beginning
  CHECK(train(1) == 8);
  CHECK(train(-kInf) == 2);
  CHECK(train(kNan) == 0.5);
  CHECK(train(1) == 0.5);
  CHECK(train(1) == 0.5);
  CHECK(train(1) == 2);
}

TEST_CASE("one bad element is enough", "[grad_scaler]") {
  const double bad = GENERATE(values<double>({kInf, -kInf, kNan}));
  const int place = GENERATE(0, 1, 2);
  GradScaler scaler(small_scaler());
  Toy toy;
  auto slopes = torch::ones({3});
  slopes[place] = bad;
  toy.backward(scaler, slopes);
  CAPTURE(bad, place);
  CHECK(!scaler.step(toy.optimizer));
  CHECK(toy.holds(0));
}

TEST_CASE("gradients are divided by the scale, once", "[grad_scaler]") {
  GradScaler scaler(small_scaler().init_scale(1000));  // no power of two
  Toy toy;
  toy.backward(scaler, 3);
  CHECK(toy.weight.grad().eq(3000).all().item<bool>());
  scaler.unscale_(toy.optimizer);
  CHECK(toy.weight.grad().allclose(torch::full({3}, 3.0), 1e-6));
  toy.weight.mutable_grad().fill_(2);  // as clipping does
  CHECK(scaler.step(toy.optimizer));
  CHECK(toy.holds(-2));
}

TEST_CASE("the gradient of a tied parameter is divided once", "[grad_scaler]") {
  const auto weight = torch::zeros({3}).requires_grad_();
  const auto other = torch::zeros({3}).requires_grad_();
  const auto group = [](std::vector<Tensor> tensors) {
    return torch::optim::OptimizerParamGroup(std::move(tensors));
  };
  SGD optimizer({group({weight, other, weight}), group({weight})},
                torch::optim::SGDOptions(1));
  GradScaler scaler(Options().init_scale(1024));
  scaler.scale((weight * 3 + other).sum()).backward();
  scaler.unscale_(optimizer);
  CHECK(weight.grad().eq(3).all().item<bool>());
  CHECK(other.grad().eq(1).all().item<bool>());
}

TEST_CASE("each optimizer steps by its own gradients, the scale by all",
          "[grad_scaler]") {
  const bool bad_first = GENERATE(true, false);
  GradScaler scaler(small_scaler());
  Toy good;
  Toy bad;
  Toy* order[] = {bad_first ? &bad : &good, bad_first ? &good : &bad};
  for (Toy* toy : order) {
    CHECK(toy->step(scaler, toy == &bad ? kInf : 1) == (toy == &good));
  }
  scaler.update();
  CHECK(scaler.get_scale() == 4);
  CHECK(good.holds(-1));
  CHECK(bad.holds(0));
  CHECK(good.train(scaler, 1));  // `bad` need not take part
  CHECK(scaler.get_scale() == 4);
}

TEST_CASE("several outputs are scaled, of any shape and dtype",
          "[grad_scaler]") {
  GradScaler scaler(small_scaler());
  const auto scaled =
      scaler.scale({torch::ones({}), torch::ones({2}, torch::kHalf)});
  REQUIRE(scaled.size() == 2);
  CHECK(scaled[0].item<float>() == 8);
  CHECK(scaled[1].scalar_type() == torch::kHalf);
  CHECK(scaled[1].eq(8).all().item<bool>());
}

TEST_CASE("gradients of several dtypes", "[grad_scaler]") {
  const int bad = GENERATE(-1, 0, 1, 2);
  GradScaler scaler(small_scaler());
  Toy toys[] = {Toy(torch::kFloat), Toy(torch::kDouble), Toy(torch::kBFloat16)};
  SGD all({toys[0].weight, toys[1].weight, toys[2].weight}, 1.0);
  for (int i = 0; i < 3; ++i) {
    toys[i].backward(scaler, i == bad ? kInf : i + 1);
  }
  CHECK(scaler.step(all) == (bad < 0));
  for (int i = 0; i < 3; ++i) {
    CHECK(toys[i].holds(bad < 0 ? -(i + 1) : 0));
  }
}

TEST_CASE("sparse gradients are divided in their values",
          "[grad_scaler][sparse]") {
  GradScaler scaler(small_scaler());
  auto table = torch::zeros({5, 2}).requires_grad_();
  SGD optimizer(std::vector<Tensor>{table}, 1.0);
  const auto backward = [&](double slope) {
    optimizer.zero_grad();
    const auto rows = torch::tensor({int64_t{3}, int64_t{1}, int64_t{3}});
    const auto found = torch::embedding(table, rows, -1, false, true);
    scaler.scale((found * slope).sum()).backward();
  };
  backward(2);
  scaler.unscale_(optimizer);
  auto expected = torch::zeros({5, 2});
  expected[1] += 2;
  expected[3] += 4;
  CHECK(table.grad().is_sparse());
  CHECK(table.grad().to_dense().equal(expected));
  scaler.update();
  backward(kInf);
  CHECK(!scaler.step(optimizer));
}

TEST_CASE("a new scale ends the iteration", "[grad_scaler]") {
  GradScaler scaler(small_scaler());
  Toy toy;
  toy.step(scaler, kInf);
  scaler.update(3.0);
  CHECK(scaler.get_scale() == 3);
  CHECK(toy.train(scaler, 1));
  scaler.set_growth_interval(2);
  scaler.set_growth_factor(10);
  scaler.set_backoff_factor(0.5);
  CHECK(toy.train(scaler, 1));
  CHECK(scaler.get_scale() == 30);
  CHECK(!toy.train(scaler, kInf));
  CHECK(scaler.get_scale() == 15);
  CHECK(scaler.get_growth_interval() == 2);
  CHECK(scaler.get_growth_factor() == 10);
  CHECK(scaler.get_backoff_factor() == 0.5);
}

TEST_CASE("a shorter interval may be over already", "[grad_scaler]") {
  const bool loads = GENERATE(false, true);
  GradScaler scaler(small_scaler());
  Toy toy;
  toy.train(scaler, 1);
  toy.train(scaler, 1);
  if (loads) {
    scaler.load_state_dict(
        test::changed(scaler.state_dict(), "growth_interval", 1));
  } else {
    scaler.set_growth_interval(1);
  }
  toy.train(scaler, 1);
  CHECK(scaler.get_scale() == 16);
}

TEST_CASE("the same interval is set before anything is scaled",
          "[grad_scaler]") {
  GradScaler scaler;
  scaler.load_state_dict(test::changed(
      GradScaler(small_scaler()).state_dict(), "_growth_tracker", 2));
  scaler.set_growth_interval(1);
  Toy toy;
  toy.train(scaler, 1);
  CHECK(scaler.get_scale() == 16);
}

TEST_CASE("counts beyond 32 bits are kept below the interval",
          "[grad_scaler]") {
  GradScaler scaler(small_scaler());
  Toy toy;
  toy.train(scaler, 1);
  scaler.set_growth_interval(int64_t{1} << 40);
  CHECK(test::entry(scaler.state_dict(), "_growth_tracker").toInt() == 1);
  const auto state =
      test::changed(scaler.state_dict(), "_growth_tracker", int64_t{1} << 40);
  scaler.load_state_dict(test::changed(state, "growth_interval", 4));
  CHECK(test::entry(scaler.state_dict(), "_growth_tracker").toInt() == 3);
}

TEST_CASE("a scaler that is not enabled passes everything on",
          "[grad_scaler]") {
  GradScaler scaler(Options().enabled(false));
  Toy toy;
  const auto loss = toy.weight.sum();
  CHECK(scaler.scale(loss).is_same(loss));
  scaler.unscale_(toy.optimizer);
  CHECK(toy.train(scaler, 1));
  CHECK(toy.train(scaler, kInf));
  CHECK(toy.holds(-kInf));
  scaler.update(5.0);
  CHECK(!scaler.is_enabled());
  CHECK(scaler.get_scale() == 1);
  CHECK(scaler.state_dict().toGenericDict().empty());
  scaler.load_state_dict(scaler.state_dict());
  scaler.load_state_dict(GradScaler().state_dict());
  CHECK(scaler.get_scale() == 1);
}

TEST_CASE("a scaler goes on where another one was", "[grad_scaler]") {
  const bool has_scaled = GENERATE(false, true);
  GradScaler first(small_scaler().growth_factor(4).backoff_factor(0.25));
  CHECK(test::entry(first.state_dict(), "scale").toDouble() == 8);
  CHECK(test::entry(first.state_dict(), "_growth_tracker").toInt() == 0);
  Toy toy;
  toy.train(first, kInf);
  toy.train(first, 1);
  toy.train(first, 1);

  GradScaler second;
  Toy other;
  if (has_scaled) {
    other.train(second, 1);
  }
  second.load_state_dict(first.state_dict());
  const auto state = second.state_dict();
  CHECK(test::entry(state, "scale").toDouble() == 2);
  CHECK(test::entry(state, "growth_factor").toDouble() == 4);
  CHECK(test::entry(state, "backoff_factor").toDouble() == 0.25);
  CHECK(test::entry(state, "growth_interval").toInt() == 3);
  CHECK(test::entry(state, "_growth_tracker").toInt() == 2);
  other.train(second, 1);
  CHECK(second.get_scale() == 8);
}

// Ranks ---------------------------------------------------------------------

TEST_CASE("a rank with inf makes every rank skip the step",
          "[grad_scaler][ranks]") {
  const int size = GENERATE(1, 2, 3, 4);
  run_ranks(size, [&](const Group& group) {
    torch::nn::Linear net(3, 2);
    DistributedDataParallel model(
        net, DistributedDataParallelOptions().process_group(group));
    SGD optimizer(model->parameters(), 0.125);
    GradScaler scaler(small_scaler());
    double scale = 8;
    for (int step = 0; step < 12; ++step) {
      const int bad_rank = step % 4 == 2 ? step % size : -1;
      auto input = torch::full({4, 3}, 0.25 * (group->getRank() + step + 1));
      if (group->getRank() == bad_rank) {
        input[1][2] = step % 8 == 2 ? kInf : kNan;
      }
      const auto before = net->weight.detach().clone();
      optimizer.zero_grad();
      scaler.scale(model->forward(input).sum()).backward();
      const bool stepped = scaler.step(optimizer);
      scaler.update();
      TORCH_CHECK(stepped == (bad_rank < 0), "step ", step);
      TORCH_CHECK(net->weight.equal(before) == !stepped, "step ", step);
      // Two good steps, then repeatedly a bad one and three good ones.
      scale *= bad_rank >= 0 ? 0.5 : step % 4 == 1 && step > 1 ? 2 : 1;
      TORCH_CHECK(scaler.get_scale() == scale, "step ", step, ": ", scale);
    }
  });
}

TEST_CASE("ranks with gradients of their own agree where they are given",
          "[grad_scaler][ranks]") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool agrees = GENERATE(true, false);
  run_ranks(size, [&](const Group& group) {
    const int rank = group->getRank();
    GradScaler scaler(small_scaler().process_group(agrees ? group : nullptr));
    Toy toy;
    int steps = 0;
    for (int step = 0; step < 2 * size; ++step) {
      const int bad_rank = step % 2 == 0 ? step / 2 : -1;
      const bool stepped = toy.train(scaler, rank == bad_rank ? kNan : 1);
      TORCH_CHECK(stepped == (agrees ? bad_rank < 0 : bad_rank != rank));
      steps += stepped;
    }
    TORCH_CHECK(steps == (agrees ? size : 2 * size - 1), steps);
    TORCH_CHECK(toy.holds(-steps));
    TORCH_CHECK(!agrees || scaler.get_scale() == 8 * std::pow(0.5, size));
  });
}

TEST_CASE("a rank without gradients agrees with the others",
          "[grad_scaler][ranks]") {
  const bool is_bad = GENERATE(true, false);
  run_ranks(3, [&](const Group& group) {
    GradScaler scaler(small_scaler().process_group(group));
    Toy toy;
    toy.backward(scaler, is_bad ? kInf : 1);
    if (group->getRank() != 1) {
      toy.weight.mutable_grad().reset();
    }
    TORCH_CHECK(scaler.step(toy.optimizer) == !is_bad);
    scaler.update();
    TORCH_CHECK(scaler.get_scale() == (is_bad ? 4 : 8));
  });
}

TEST_CASE("ranks with other scales or counts are an error of the step",
          "[grad_scaler][ranks][errors]") {
  enum class Differs { scale, new_scale, tracker, growth, interval };
  const auto differs = GENERATE(Differs::scale,
                                Differs::new_scale,
                                Differs::tracker,
                                Differs::growth,
                                Differs::interval);
  const bool is_bad = GENERATE(false, true);
  const auto errors = test::try_ranks(3, [&](const Group& group) {
    const bool is_odd = group->getRank() == 1;
    auto options = small_scaler().process_group(group);
    if (is_odd && differs == Differs::scale) {
      options.init_scale(2);
    } else if (is_odd && differs == Differs::growth) {
      options.growth_factor(3);
    } else if (is_odd && differs == Differs::interval) {
      options.growth_interval(2);
    }
    GradScaler scaler(options);
    Toy toy;
    double weight = 0;
    const auto train = [&](double slope) {
      try {
        toy.train(scaler, slope);
      } catch (const c10::Error&) {
        TORCH_CHECK(toy.holds(weight), "stepped, to ", toy.weight);
        throw;
      }
      weight -= slope;
    };
    if (differs == Differs::growth || differs == Differs::interval) {
      for (int step = 1; step <= 3; ++step) {
        train(step);
      }
    } else if (is_odd && differs == Differs::tracker) {
      scaler.load_state_dict(
          test::changed(scaler.state_dict(), "_growth_tracker", 2));
    } else if (differs == Differs::new_scale) {
      train(1);
      toy.backward(scaler, 1);
      scaler.update(is_odd ? 2 : 8);
    }
    train(is_bad && group->getRank() == 0 ? kInf : 1);
  });
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    CHECK_THAT(errors[rank],
               Catch::Contains("Expected one scale and one growth tracker") &&
                   Catch::Contains(c10::str("(rank ", rank, ": ")));
  }
  CHECK_THAT(
      errors[1],
      Catch::Contains(differs == Differs::tracker
                          ? "trackers from 0 to 2 (rank 1: 8 and 2)"
                      : differs == Differs::growth
                          ? "scales from 16 to 24 and growth trackers "
                            "from 0 to 0 (rank 1: 24 and 0)"
                      : differs == Differs::interval
                          ? "growth trackers from 0 to 2 (rank 1: 16 and 0)"
                          : "scales from 2 to 8"));
}

TEST_CASE("ranks agree by one all-reduce an optimizer",
          "[grad_scaler][ranks]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  GradScaler scaler(small_scaler().process_group(group));
  Toy toy;
  for (int i = 0; i < 2; ++i) {
    toy.train(scaler, 1);
    const auto calls = group->take_calls();
    REQUIRE(calls.size() == 1);
    CHECK(calls[0].name == "allreduce");
    CHECK(calls[0].numel == 5);
  }
}

}  // namespace grad_scaler_test
}  // namespace ddp
