#include "ddp/exchanges/power_sgd.h"

#include <cmath>
#include <limits>

#include <ATen/ops/linalg_qr.h>
#include <torch/types.h>

#include "ddp/reduce/detail/pass_mark.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/fake_backend.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"
#include "test/support/state_dict.h"

namespace ddp {
namespace power_sgd_test {

using Catch::Contains;
using test::all_equal;
using test::backward;
using test::FakeBackend;
using test::gauss;
using test::Group;
using test::leaf;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

PowerSGDOptions of_rank(int64_t rank) {
  return PowerSGDOptions().rank(rank).min_compression_rate(1).start_after(0);
}

/// Returns an arbitrary matrix of full rank that depends on the seed.
Tensor matrix(at::IntArrayRef sizes, double seed) {
  const auto indices =
      torch::arange(c10::multiply_integers(sizes), torch::kDouble);
  return (indices * indices * (0.37 + seed) + seed).sin().view(sizes);
}

/// A weight with a gradient that the test chooses.
struct Trained {
  Trained(const Group& group,
          at::IntArrayRef sizes,
          const PowerSGDOptions& options)
      : exchange(std::make_shared<PowerSGD>(group, options)),
        weight(leaf(sizes, torch::kDouble)),
        reducer({{"weight", weight}}, group, Options().exchange(exchange)) {}

  Tensor step(const Tensor& gradient) {
    weight.mutable_grad().reset();
    backward(reducer, (weight * gradient).sum());
    return weight.grad().clone();
  }

  std::shared_ptr<PowerSGD> exchange;
  Tensor weight;
  Reducer reducer;
};

Tensor mean_of(int size, at::IntArrayRef sizes, double seed) {
  auto mean = torch::zeros(sizes, torch::kDouble);
  for (int rank = 0; rank < size; ++rank) {
    mean += matrix(sizes, seed + rank) / size;
  }
  return mean;
}

void check_close(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.allclose(b, 1e-9, 1e-9), a, "\n", b);
}

TEST_CASE("gradients of low rank arrive as they are", "[exchange][powersgd]") {
  const int size = GENERATE(1, 2, 3, 4);
  const int64_t rank = GENERATE(1, 2, 3);  // Gram-Schmidt, then QR
  const bool feeds_back = GENERATE(false, true);
  const bool is_warm = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    Trained trained(
        group,
        {8, 10},
        of_rank(rank).error_feedback(feeds_back).warm_start(is_warm));
    for (int step = 1; step <= 3; ++step) {
      const auto product = matrix({8, rank}, step).mm(matrix({rank, 10}, 7));
      const auto result = trained.step(product * (group->getRank() + 1.0));
      check_close(result, product * (gauss(size) / size));
    }
  });
}

TEST_CASE("without feedback a gradient is projected", "[exchange][powersgd]") {
  const int size = GENERATE(1, 3);
  run_ranks(size, [&](const Group& group) {
    Trained trained(group, {8, 10}, of_rank(3).error_feedback(false));
    for (int step = 1; step <= 3; ++step) {
      const auto mean = mean_of(size, {8, 10}, step);
      const auto result =
          trained.step(matrix({8, 10}, step + group->getRank()));
      const auto left = mean - result;
      TORCH_CHECK((left * result).sum().abs().item<double>() < 1e-9);
      TORCH_CHECK(left.norm().item<double>() > 0.1);
      const auto values = torch::linalg_svdvals(result);
      TORCH_CHECK(values[2].item<double>() > 0.1, values);
      TORCH_CHECK(values[3].item<double>() < 1e-9, values);
    }
  });
}

TEST_CASE("later steps make up for the error of a compression",
          "[exchange][powersgd]") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool is_warm = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    Trained trained(group, {8, 10}, of_rank(2).warm_start(is_warm));
    auto given = torch::zeros({8, 10}, torch::kDouble);
    auto got = torch::zeros({8, 10}, torch::kDouble);
    for (int step = 1; step <= 5; ++step) {
      given += mean_of(size, {8, 10}, step);
      got += trained.step(matrix({8, 10}, step + group->getRank()));
      auto errors = test::entry(trained.exchange->state_dict(), "weight.error")
                        .toTensor()
                        .view({8, 10}) /
                    size;
      std::vector<Tensor> tensors{errors};
      group->allreduce(tensors)->wait();
      check_close(got + errors, given);
    }
  });
}

TEST_CASE("the first passes average gradients as they are",
          "[exchange][powersgd]") {
  const int size = GENERATE(1, 2, 3, 4);
  const int64_t start = GENERATE(1, 2);
  run_ranks(size, [&](const Group& group) {
    Trained late(group, {8, 10}, of_rank(1).start_after(start));
    Trained at_once(group, {8, 10}, of_rank(1));
    for (int step = 0; step < 5; ++step) {
      const auto mine = matrix({8, 10}, step + group->getRank());
      const auto result = late.step(mine);
      if (step < start) {
        check_close(result, mean_of(size, {8, 10}, step));
        TORCH_CHECK(late.exchange->statistics().numel_before == 0);
      } else {
        TORCH_CHECK(result.equal(at_once.step(mine)), step);
      }
    }
  });
}

TEST_CASE("with a warm start a gradient that stays is found",
          "[exchange][powersgd]") {
  run_ranks(2, [](const Group& group) {
    Trained trained(group, {8, 10}, of_rank(2).error_feedback(false));
    const auto mine = matrix({8, 10}, 1.0 + group->getRank());
    const auto mean = mean_of(2, {8, 10}, 1);
    Tensor result;
    for (int step = 0; step < 300; ++step) {
      result = trained.step(mine);
    }
    // The best approximation of rank 2 leaves the other singular values.
    const auto values = torch::linalg_svdvals(mean);
    const double best = values.slice(0, 2).norm().item<double>();
    const double left = (mean - result).norm().item<double>();
    TORCH_CHECK(std::abs(left - best) < 1e-6, left, " ", best);
  });
}

/// A matrix, a convolution in channels_last, a bias, a scalar, a matrix too
/// small to compress, an empty and a complex parameter.
struct Mixed {
  Mixed(const Group& group, const Options& options)
      : reducer(make(), group, options) {}

  std::vector<NamedParameter> make() {
    return {{"matrix", matrix},
            {"image", image},
            {"bias", bias},
            {"scalar", scalar},
            {"small", small},
            {"empty", empty},
            {"complex", complex},
            {"same", same}};
  }

  void step(double slope) {
    for (const auto& [name, tensor, sparse] : make()) {
      tensor.mutable_grad().reset();
    }
    backward(reducer,
             slope * (matrix.sum() + 2 * image.sum() + 3 * bias.sum() +
                      4 * scalar + 5 * small.sum() + empty.sum() +
                      6 * torch::real(complex).sum() + 7 * same.sum()));
  }

  void check(double mean) {
    TORCH_CHECK(matrix.grad().allclose(torch::full({8, 6}, mean)));
    TORCH_CHECK(image.grad().allclose(torch::full({8, 3, 2, 2}, 2 * mean)));
    TORCH_CHECK(image.grad().strides() == image.strides());
    TORCH_CHECK(bias.grad().allclose(torch::full({5}, 3 * mean)));
    TORCH_CHECK(scalar.grad().allclose(torch::full({}, 4 * mean)));
    TORCH_CHECK(small.grad().allclose(torch::full({2, 2}, 5 * mean)));
    TORCH_CHECK(
        torch::real(complex.grad()).allclose(torch::full({9, 9}, 6 * mean)));
    TORCH_CHECK(same.grad().allclose(torch::full({8, 6}, 7 * mean)));
  }

  Tensor matrix = leaf({8, 6});
  Tensor image = torch::ones({8, 3, 2, 2})
                     .contiguous(torch::MemoryFormat::ChannelsLast)
                     .requires_grad_();
  Tensor bias = leaf({5});
  Tensor scalar = leaf({});
  Tensor small = leaf({2, 2});
  Tensor empty = leaf({0, 3});
  Tensor complex = leaf({9, 9}, torch::kComplexFloat);
  Tensor same = leaf({8, 6});
  Reducer reducer;
};

TEST_CASE("vectors, scalars and complex numbers travel as they are",
          "[exchange][powersgd]") {
  const int size = GENERATE(1, 2, 3);
  const double cap = GENERATE(1e-6, 25.0);
  const bool is_warm = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    const auto exchange =
        std::make_shared<PowerSGD>(group, of_rank(1).warm_start(is_warm));
    Mixed mixed(
        group,
        Options().exchange(exchange).first_bucket_cap_mb(cap).bucket_cap_mb(
            cap));
    for (int step = 1; step <= 3; ++step) {
      mixed.step(step * (group->getRank() + 1.0));
      mixed.check(step * gauss(size) / size);
    }
    const auto statistics = exchange->statistics();
    const int64_t plain = 5 + 1 + 4 + 81;
    TORCH_CHECK(statistics.numel_before == 3 * (plain + 48 + 96 + 48));
    TORCH_CHECK(statistics.numel_after == 3 * (plain + 14 + 20 + 14));
    TORCH_CHECK(statistics.compression_rate() == 283.0 / 139);
  });
}

TEST_CASE("the first passes send vectors, empty and complex gradients",
          "[exchange][powersgd]") {
  const double cap = GENERATE(1e-6, 25.0);
  run_ranks(3, [&](const Group& group) {
    Mixed mixed(group,
                Options()
                    .exchange(std::make_shared<PowerSGD>(
                        group, of_rank(1).start_after(2)))
                    .first_bucket_cap_mb(cap)
                    .bucket_cap_mb(cap));
    for (int step = 1; step <= 4; ++step) {
      mixed.step(step * (group->getRank() + 1.0));
      mixed.check(step * 2.0);
    }
  });
}

TEST_CASE("gradients of a rank that is lower, or zero",
          "[exchange][powersgd]") {
  const int64_t rank = GENERATE(1, 2, 3);
  run_ranks(2, [&](const Group& group) {
    Trained trained(group, {8, 10}, of_rank(rank));
    for (int step = 0; step < 3; ++step) {
      const auto result = trained.step(torch::zeros({8, 10}, torch::kDouble));
      TORCH_CHECK(all_equal(result, 0), result);
    }
    const auto some = matrix({8, 1}, 1).mm(matrix({1, 10}, 2));
    for (int step = 0; step < 3; ++step) {
      check_close(trained.step(some), some);
    }
  });
}

TEST_CASE("all ranks have the same bits", "[exchange][powersgd]") {
  run_ranks(4, [](const Group& group) {
    Trained trained(group, {16, 12}, of_rank(2));
    for (int step = 0; step < 3; ++step) {
      const auto result =
          trained.step(matrix({16, 12}, step + group->getRank()));
      std::vector<Tensor> first{result.clone()};
      group->broadcast(first)->wait();
      TORCH_CHECK(first[0].equal(result));
    }
  });
}

TEST_CASE("PowerSGD sends the factors", "[exchange][powersgd]") {
  const int64_t rank = GENERATE(1, 4);
  run_ranks(2, [&](const Group& group) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    auto weight = leaf({100, 60});
    auto bias = leaf({100});
    Reducer reducer({{"weight", weight}, {"bias", bias}},
                    counted,
                    Options().exchange(std::make_shared<PowerSGD>(
                        counted, PowerSGDOptions().rank(rank).start_after(0))));
    backward(reducer, weight.sum() + bias.sum());
    counted->take();
    backward(reducer, weight.sum() + bias.sum());
    const int64_t numel = (100 + 60) * rank + 100 + detail::kMarkNumel;
    const auto bytes = counted->take();
    TORCH_CHECK(bytes.all_reduce == 4 * numel, bytes.all_reduce);
    TORCH_CHECK(bytes.all_gather == 0 && bytes.broadcast == 0);
  });
}

TEST_CASE("a state goes on where it was saved", "[exchange][powersgd]") {
  const bool is_warm = GENERATE(false, true);
  const bool feeds_back = GENERATE(false, true);
  const int64_t start = GENERATE(0, 1, 4);  // the state is saved after 3 passes
  run_ranks(2, [&](const Group& group) {
    const auto options = of_rank(2)
                             .warm_start(is_warm)
                             .error_feedback(feeds_back)
                             .start_after(start);
    const auto gradient = [&](int step) {
      return matrix({8, 10}, step + group->getRank());
    };
    Trained whole(group, {8, 10}, options);
    auto state = whole.exchange->state_dict();  // before any pass
    auto resumed =
        std::make_unique<Trained>(group, torch::IntArrayRef{8, 10}, options);
    resumed->exchange->load_state_dict(state);
    for (int step = 0; step < 5; ++step) {
      const auto expected = whole.step(gradient(step));
      const auto got = resumed->step(gradient(step));
      TORCH_CHECK(got.equal(expected), got, expected);
      if (step == 2) {
        state = resumed->exchange->state_dict();
        resumed = std::make_unique<Trained>(
            group, torch::IntArrayRef{8, 10}, options);
        resumed->exchange->load_state_dict(state);
      }
    }
  });
}

TEST_CASE("a training goes back to a state", "[exchange][powersgd]") {
  run_ranks(2, [&](const Group& group) {
    Trained trained(group, {8, 10}, of_rank(2));
    const auto gradient = [&](int step) {
      return matrix({8, 10}, step + group->getRank());
    };
    trained.step(gradient(0));
    const auto state = trained.exchange->state_dict();
    const auto first = trained.step(gradient(1));
    const auto second = trained.step(gradient(2));
    trained.exchange->load_state_dict(state);
    TORCH_CHECK(trained.exchange->state_dict().toGenericDict().size() ==
                state.toGenericDict().size());
    TORCH_CHECK(trained.step(gradient(1)).equal(first));
    TORCH_CHECK(trained.step(gradient(2)).equal(second));
  });
}

TEST_CASE("a state after a gradient of zero goes on", "[exchange][powersgd]") {
  const bool feeds_back = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    const auto options = of_rank(2).error_feedback(feeds_back);
    Trained whole(group, {8, 10}, options);
    whole.step(torch::zeros({8, 10}, torch::kDouble));
    Trained resumed(group, {8, 10}, options);
    resumed.exchange->load_state_dict(whole.exchange->state_dict());
    const auto gradient = matrix({8, 10}, group->getRank());
    const auto expected = whole.step(gradient);
    TORCH_CHECK(expected.norm().item<double>() > 1);
    TORCH_CHECK(resumed.step(gradient).equal(expected));
  });
}

TEST_CASE("one inf makes one gradient NaN", "[exchange][powersgd]") {
  const int64_t rank = GENERATE(1, 2, 3);  // Gram-Schmidt, then QR
  const bool is_warm = GENERATE(false, true);
  const bool feeds_back = GENERATE(false, true);
  const double bad = GENERATE(
      values<double>({std::numeric_limits<double>::infinity(), std::nan("")}));
  run_ranks(2, [&](const Group& group) {
    const auto options =
        of_rank(rank).warm_start(is_warm).error_feedback(feeds_back);
    Trained hurt(group, {8, 10}, options);
    Trained whole(group, {8, 10}, options);
    for (int step = 0; step < 6; ++step) {
      auto gradient = matrix({8, 10}, step + group->getRank());
      if (step == 3) {
        gradient[4][5] = group->getRank() == 1 ? bad : 1;
        TORCH_CHECK(hurt.step(gradient).isnan().all().item<bool>());
        if (!is_warm) {  // as many random draws
          const auto state = whole.exchange->state_dict();
          test::entry(state, "draws").toTensor().add_(1);
          whole.exchange->load_state_dict(state);
        }
        continue;
      }
      const auto expected = whole.step(gradient);
      const auto got = hurt.step(gradient);
      TORCH_CHECK(got.allclose(expected, 1e-9, 1e-9), step, got, expected);
    }
  });
}

TEST_CASE("a state that does not fit is refused",
          "[exchange][powersgd][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(1);
  Trained trained(group, {8, 10}, of_rank(2));
  trained.step(matrix({8, 10}, 1));
  const auto state = trained.exchange->state_dict();
  const auto load = [&](const c10::IValue& changed) {
    Trained other(group, {8, 10}, of_rank(2));
    other.exchange->load_state_dict(changed);
    other.step(matrix({8, 10}, 1));
  };
  load(state);
  for (const std::string key :
       {"draws", "passes", "weight.error", "weight.q"}) {
    if (key != "passes") {
      CHECK_THROWS_WITH(load(test::without(state, key)),
                        Contains("Expected " + key + " in the"));
    }
    CHECK_THROWS_WITH(
        load(test::changed(state, key, torch::ones({1, 2}))),
        Contains("Expected " + key + " of sizes") && Contains("got [1, 2]"));
  }
}

TEST_CASE("options that differ are named on every rank",
          "[exchange][powersgd][errors]") {
  const auto errors = try_ranks(3, [](const Group& group) {
    Trained trained(
        group, {8, 10}, of_rank(group->getRank() == 2 ? 3 : 1).seed(5));
    trained.step(matrix({8, 10}, 1));
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("same options of PowerSGD on all ranks, but got on "
                        "ranks 0-1: rank 1, min_compression_rate 1, "
                        "error_feedback 1,") &&
                   Contains("; on rank 2: rank 3,"));
  }
}

TEST_CASE("errors of PowerSGD", "[exchange][powersgd][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  const auto make = [&](const PowerSGDOptions& options) {
    const PowerSGD exchange(group, options);
  };
  CHECK_THROWS_WITH(make(PowerSGDOptions().rank(0)), Contains("got 0"));
  CHECK_THROWS_WITH(make(PowerSGDOptions().min_compression_rate(std::nan(""))),
                    Contains("Expected min_compression_rate"));
  CHECK_THROWS_WITH(make(PowerSGDOptions().orthogonalization_epsilon(-1)),
                    Contains("Expected orthogonalization_epsilon"));
  CHECK_THROWS_WITH(make(PowerSGDOptions().start_after(-1)),
                    Contains("Expected start_after") && Contains("got -1"));
  auto table = torch::zeros({5, 2}).requires_grad_();
  CHECK_THROWS_WITH(
      Reducer({{"table", table, true}},
              group,
              Options().exchange(std::make_shared<PowerSGD>(group))),
      Contains("Expected dense gradients") && Contains("parameter table"));
}

TEST_CASE("columns become orthonormal", "[powersgd]") {
  const int64_t rank = GENERATE(1, 2, 3);
  const auto dtype =
      GENERATE(torch::kDouble, torch::kFloat, torch::kHalf, torch::kBFloat16);
  auto columns = matrix({1, 9, rank}, 1).to(dtype);
  detail::orthogonalize(columns, 0);
  const auto wide = columns[0].to(torch::kDouble);
  CHECK(wide.t().mm(wide).allclose(torch::eye(rank, torch::kDouble), 0, 0.05));
  auto dependent = matrix({1, 9, 1}, 1).to(dtype).expand({1, 9, 2}).clone();
  detail::orthogonalize(dependent, 0);
  CHECK(all_equal(dependent.select(2, 1), 0));
  CHECK(!all_equal(dependent.select(2, 0), 0));
  auto zero = torch::zeros({1, 9, 2}, dtype);
  detail::orthogonalize(zero, 0);
  CHECK(all_equal(zero, 0));
  auto small = torch::full({1, 4, 1}, 0.5, torch::kDouble);
  detail::orthogonalize(small, 1);
  CHECK(all_equal(small, 0.25));
}

TEST_CASE("seeds are numpy's", "[powersgd]") {
  detail::SeedDraws draws(0);
  CHECK(draws.next() == 209652396);
  CHECK(draws.next() == 398764591);
  CHECK(draws.next() == 924231285);
  CHECK(draws.count() == 3);
}

}  // namespace power_sgd_test
}  // namespace ddp
