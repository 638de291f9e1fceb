// Parameters without elements, and gradients with another dtype than their
// parameter.
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/exchanges/quantized_exchange.h"
#include "ddp/optim/fused.h"
#include "test/support/catch.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace odd_parameters_test {

using Catch::Contains;
using test::all_equal;
using test::backward;
using test::Group;
using test::leaf;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;
using MakeExchange = std::shared_ptr<Exchange> (*)(const Group&);

/// One empty parameter among others, and one that is the only one of its dtype.
TEST_CASE("parameters without elements", "[reducer][odd]") {
  const int size = GENERATE(1, 2, 3);
  const bool as_view = GENERATE(false, true);
  const bool finds_unused = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    auto some = leaf({3});
    auto none = leaf({0, 4});
    auto alone = leaf({0}, torch::kDouble);
    Reducer reducer(
        {{"some", some}, {"none", none}, {"alone", alone}},
        group,
        Options().gradient_as_bucket_view(as_view).find_unused_parameters(
            finds_unused));
    for (int step = 1; step <= 3; ++step) {
      for (auto* tensor : {&some, &none, &alone}) {
        tensor->mutable_grad().reset();
      }
      const auto total = some.sum() + none.sum() + alone.sum();
      backward(reducer, total * (step * (group->getRank() + 1.0)));
      TORCH_CHECK(some.grad().allclose(
          torch::full({3}, step * test::gauss(size) / size)));
      TORCH_CHECK(none.grad().sizes() == at::IntArrayRef({0, 4}));
      TORCH_CHECK(alone.grad().scalar_type() == torch::kDouble);
    }
  });
}

TEST_CASE("exchanges of parameters without elements", "[exchange][odd]") {
  const auto make = GENERATE(values<MakeExchange>({
      [](const Group& group) -> std::shared_ptr<Exchange> {
        return std::make_shared<CastExchange>(group, torch::kBFloat16);
      },
      [](const Group& group) -> std::shared_ptr<Exchange> {
        return std::make_shared<QuantizedExchange>(group);
      },
      [](const Group& group) -> std::shared_ptr<Exchange> {
        return std::make_shared<PowerSGD>(
            group, PowerSGDOptions().min_compression_rate(0.1).start_after(0));
      },
  }));
  run_ranks(3, [&](const Group& group) {
    auto some = leaf({8, 8});
    auto none = leaf({0, 4});
    auto alone = leaf({4, 0}, torch::kDouble);
    Reducer reducer({{"some", some}, {"none", none}, {"alone", alone}},
                    group,
                    Options().exchange(make(group)));
    for (int step = 1; step <= 2; ++step) {
      const auto total = some.sum() + none.sum() + alone.sum();
      some.mutable_grad().reset();
      backward(reducer, total * (group->getRank() + 1.0));
      TORCH_CHECK(some.grad().allclose(torch::full({8, 8}, 2.0), 0.01),
                  some.grad());
    }
  });
}

TEST_CASE("gradients of half parameters add up in float", "[reducer][odd]") {
  const int size = GENERATE(1, 2, 4);
  const bool as_view = GENERATE(false, true);
  const bool apart = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    auto narrow = leaf({5}, torch::kBFloat16);
    auto wide = leaf({3});
    narrow.set_grad_dtype(torch::kFloat);
    Reducer reducer({{"narrow", narrow}, {"wide", wide}},
                    group,
                    Options()
                        .gradient_as_bucket_view(as_view)
                        .first_bucket_cap_mb(apart ? 1e-6 : 1)
                        .bucket_cap_mb(apart ? 1e-6 : 25));
    TORCH_CHECK(reducer.plan().size() == (apart ? 2 : 1));
    // Each rank's gradient fits in eight bits; their mean does not.
    const auto share = [](int rank) { return 1 + rank / 128.0; };
    double mean = 0;
    for (int rank = 0; rank < size; ++rank) {
      mean += share(rank) / size;
    }
    for (int step = 1; step <= 3; ++step) {
      const auto slope = torch::tensor(share(group->getRank()));
      backward(reducer,
               (narrow * slope.to(torch::kBFloat16)).sum() +
                   (wide * slope.to(torch::kFloat)).sum());
      TORCH_CHECK(narrow.grad().scalar_type() == torch::kFloat);
      TORCH_CHECK(all_equal(narrow.grad(), step * mean), narrow.grad());
      TORCH_CHECK(all_equal(wide.grad(), step * mean), wide.grad());
    }
  });
}

TEST_CASE("optimizers step half parameters by gradients in float",
          "[reducer][odd]") {
  run_ranks(2, [&](const Group& group) {
    auto weight = leaf({4}, torch::kBFloat16);
    weight.set_grad_dtype(torch::kFloat);
    FusedSGD optimizer({weight}, torch::optim::SGDOptions(0.5));
    Reducer reducer({{"weight", weight}}, group);
    backward(reducer, weight.sum() * (group->getRank() + 1.0));
    optimizer.step();
    TORCH_CHECK(all_equal(weight, 1 - 0.5 * 1.5), weight);
  });
}

TEST_CASE("a gradient of an unexpected dtype names its parameter",
          "[reducer][odd][errors]") {
  const auto train = [](bool asks_late) {
    return try_ranks(2, [asks_late](const Group& group) {
      auto a = leaf({2});
      auto b = leaf({2});
      Reducer reducer({{"a", a}, {"b", b}}, group);
      if (asks_late) {
        b.set_grad_dtype(torch::kDouble);
      } else {
        b.mutable_grad() = torch::zeros({2}, torch::kDouble);
      }
      backward(reducer, a.sum() + b.sum());
    });
  };
  for (const bool asks_late : {false, true}) {
    for (const auto& error : train(asks_late)) {
      CHECK_THAT(error,
                 Contains("Expected a gradient of type Float for parameter b, "
                          "but got Double; call set_grad_dtype() before"));
    }
  }
}

TEST_CASE("ranks with gradients of other dtypes are refused",
          "[ddp][odd][errors]") {
  struct LeafImpl : torch::nn::Module {
    explicit LeafImpl(bool odd) {
      weight = register_parameter("weight", torch::ones({2}, torch::kBFloat16));
      if (odd) {
        weight.set_grad_dtype(torch::kFloat);
      }
    }
    Tensor forward(const Tensor& x) { return weight * x; }
    Tensor weight;
  };
  for (const auto& error : try_ranks(3, [](const Group& group) {
         DistributedDataParallel model(
             std::make_shared<LeafImpl>(group->getRank() == 1),
             Options().process_group(group));
       })) {
    CHECK_THAT(error,
               Contains("on ranks 0, 2: parameter weight of BFloat16 [2], ") &&
                   Contains("; on rank 1: parameter weight of BFloat16 with "
                            "gradients of Float [2], "));
  }
}

}  // namespace odd_parameters_test
}  // namespace ddp
