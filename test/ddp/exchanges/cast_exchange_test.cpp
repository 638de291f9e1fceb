#include "ddp/exchanges/cast_exchange.h"

#include <ATen/ops/embedding.h>
#include <torch/types.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/reduce/detail/pass_mark.h"
#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/fake_backend.h"
#include "test/support/fake_exchange.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"
#include "test/support/state_dict.h"

namespace ddp {
namespace cast_exchange_test {

using Catch::Contains;
using test::backward;
using test::FakeBackend;
using test::FakeExchange;
using test::gauss;
using test::Group;
using test::leaf;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

Options through(const Group& group, torch::Dtype dtype) {
  return Options().exchange(std::make_shared<CastExchange>(group, dtype));
}

TEST_CASE("each rank's share is rounded once, then added up",
          "[exchange][cast]") {
  const int size = GENERATE(2, 3, 4);
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  const bool as_view = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    auto fine = leaf({33});
    auto plain = leaf({2, 5});
    Reducer reducer({{"fine", fine}, {"plain", plain}},
                    group,
                    through(group, dtype)
                        .gradient_as_bucket_view(as_view)
                        .bucket_cap_mb(1e-4));
    for (int step = 1; step <= 3; ++step) {
      fine.mutable_grad().reset();
      plain.mutable_grad().reset();
      const double share = 1.0 + 1.0 / 4096;  // rounds to 1 in both dtypes
      const double slope = size * step * (group->getRank() + 1.0);
      backward(reducer, fine.sum() * size * share + plain.sum() * slope);
      TORCH_CHECK(fine.grad().eq(size).all().item<bool>(), fine.grad());
      const double sum = step * gauss(size);  // small integers are exact
      TORCH_CHECK(plain.grad().eq(sum).all().item<bool>(), plain.grad());
      TORCH_CHECK(plain.grad().scalar_type() == torch::kFloat);
    }
  });
}

TEST_CASE("narrow gradients may be added up in float", "[exchange][cast]") {
  const int size = GENERATE(2, 4);
  run_ranks(size, [&](const Group& group) {
    auto weight = leaf({7}, torch::kBFloat16);
    Reducer reducer({{"w", weight}}, group, through(group, torch::kFloat));
    // In bfloat16 256 + 1 is 256.
    const double share = group->getRank() == 0 ? 256 : 1;
    backward(reducer, (weight * (share * size)).sum());
    const auto sum = torch::full({1}, 255.0 + size).to(torch::kBFloat16);
    TORCH_CHECK(weight.grad().scalar_type() == torch::kBFloat16);
    TORCH_CHECK(weight.grad().eq(sum).all().item<bool>(), weight.grad());
  });
}

TEST_CASE("a narrow wire sends half the bytes", "[exchange][cast]") {
  const int64_t numel = 1000;
  const auto bytes = [&](const Group& group, std::optional<at::ScalarType> to) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    auto weight = leaf({numel});
    Reducer reducer(
        {{"w", weight}}, counted, to ? through(counted, *to) : Options());
    backward(reducer, weight.sum());
    counted->take();
    backward(reducer, weight.sum());
    return counted->take().all_reduce;
  };
  run_ranks(2, [&](const Group& group) {
    const int64_t spare = detail::kMarkNumel * sizeof(float);
    const int64_t plain = bytes(group, std::nullopt);
    TORCH_CHECK(plain == numel * 4 + spare, plain);
    for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
      const int64_t narrow = bytes(group, dtype);
      TORCH_CHECK(narrow == numel * 4 / 2 + spare, narrow);
    }
  });
}

TEST_CASE("a value that does not fit in half is inf on every rank",
          "[exchange][cast]") {
  run_ranks(3, [](const Group& group) {
    auto weight = leaf({4});
    Reducer reducer({{"w", weight}}, group, through(group, torch::kHalf));
    backward(reducer, weight.sum() * (group->getRank() == 1 ? 3e6 : 1.0));
    TORCH_CHECK(weight.grad().isinf().all().item<bool>(), weight.grad());
  });
}

TEST_CASE("sparse and complex gradients travel as they are",
          "[exchange][cast][sparse]") {
  const int size = 2;
  run_ranks(size, [&](const Group& group) {
    auto table = torch::zeros({5, 2}).requires_grad_();
    auto wave = torch::ones({3}, torch::kComplexFloat).requires_grad_();
    auto dense = leaf({3});
    Reducer reducer({{"table", table, true}, {"wave", wave}, {"dense", dense}},
                    group,
                    through(group, torch::kBFloat16));
    const double share = 1.0 + 1.0 / 4096;
    for (int step = 0; step < 2; ++step) {
      for (auto* tensor : {&table, &wave, &dense}) {
        tensor->mutable_grad().reset();
      }
      const auto row = torch::tensor({int64_t{group->getRank()}});
      const auto rows = torch::embedding(table, row, -1, false, true);
      const auto loss = rows.sum() + torch::real(wave).sum() + dense.sum();
      backward(reducer, loss * (size * share));
      auto expected = torch::zeros({5, 2});
      expected.slice(0, 0, size) += share;
      TORCH_CHECK(table.grad().to_dense().equal(expected), table.grad());
      TORCH_CHECK(torch::real(wave.grad()).eq(size * share).all().item<bool>());
      TORCH_CHECK(dense.grad().eq(size).all().item<bool>(), dense.grad());
    }
  });
}

TEST_CASE("the inner exchange is asked and gets converted buckets",
          "[exchange][cast]") {
  struct Inner : FakeExchange {
    double scale(int ranks) const override { return 3.0 * ranks; }
    std::string refuses_sparse() const override { return "no rows"; }
  };
  const auto inner = std::make_shared<Inner>();
  {
    const CastExchange asked(inner, torch::kBFloat16);
    CHECK(asked.scale(2) == 6);
    CHECK(asked.refuses_sparse() == "no rows");
  }

  auto weight = leaf({2, 5});
  Reducer reducer({{"w", weight}},
                  c10::make_intrusive<FakeBackend>(2),
                  Options().exchange(
                      std::make_shared<CastExchange>(inner, torch::kBFloat16)));
  inner->on_start = [](const GradientBucket& bucket) {
    TORCH_CHECK(bucket.payload.scalar_type() == torch::kBFloat16);
    TORCH_CHECK(bucket.payload.numel() == 10);
    bucket.gradients()[0].add_(1);
  };
  backward(reducer, weight.sum());
  CHECK(inner->take_calls() == std::vector<std::string>{"start 0", "finish 0"});
  CHECK(weight.grad().eq(7).all().item<bool>());  // 1 * 6 + 1
}

TEST_CASE("its state is that of the inner exchange", "[exchange][cast]") {
  run_ranks(2, [](const Group& group) {
    const auto make = [&] {
      return std::make_shared<CastExchange>(
          std::make_shared<PowerSGD>(
              group, PowerSGDOptions().min_compression_rate(1).start_after(0)),
          torch::kDouble);
    };
    auto weight = leaf({8, 6});
    const auto gradient = torch::arange(48.0).view({8, 6}).sin();
    const auto pass = [&](const std::shared_ptr<CastExchange>& exchange) {
      Reducer reducer({{"w", weight}}, group, Options().exchange(exchange));
      weight.mutable_grad().reset();
      backward(reducer, (weight * gradient * (group->getRank() + 1)).sum());
      return weight.grad().clone();
    };
    const auto exchange = make();
    pass(exchange);
    const auto state = exchange->state_dict();
    TORCH_CHECK(test::entry(state, "w.error").isTensor());
    const auto resumed = make();
    resumed->check_state_dict(state);
    resumed->load_state_dict(state);
    TORCH_CHECK(pass(resumed).equal(pass(exchange)));
  });
}

TEST_CASE("a missing gradient is told beside a narrow wire",
          "[exchange][cast][errors]") {
  const auto errors = try_ranks(2, [&](const Group& group) {
    auto used = leaf({3});
    auto other = leaf({3});
    Reducer reducer({{"used", used}, {"other", other}},
                    group,
                    through(group, torch::kBFloat16));
    backward(reducer,
             group->getRank() == 1 ? used.sum() : used.sum() + other.sum());
  });
  CHECK_THAT(errors[1], Contains("got none on rank 1: other;"));
  CHECK_THAT(errors[0], Contains("another rank has left"));
}

TEST_CASE("a wire that gradients cannot travel in is refused",
          "[exchange][cast][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  CHECK_THROWS_WITH(CastExchange(group, torch::kInt),
                    Contains("kBFloat16, kHalf") && Contains("got Int"));
  CHECK_THROWS_WITH(
      CastExchange(std::shared_ptr<Exchange>(), torch::kHalf),
      Contains("Expected an exchange for the converted gradients"));
}

}  // namespace cast_exchange_test
}  // namespace ddp
