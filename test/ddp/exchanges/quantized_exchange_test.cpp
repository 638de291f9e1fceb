#include "ddp/exchanges/quantized_exchange.h"

#include <limits>

#include <torch/types.h>

#include "ddp/reduce/detail/pass_mark.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/fake_backend.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace quantized_exchange_test {

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

Options quantized(const Group& group, int64_t block = 256) {
  return Options().exchange(std::make_shared<QuantizedExchange>(group, block));
}

/// Returns arbitrary numbers that depend on the seed.
Tensor numbers(int64_t count, double seed) {
  const auto indices = torch::arange(count, torch::kDouble);
  return (indices * indices * (0.37 + seed) + seed)
      .sin()
      .mul(1 + seed)
      .to(torch::kFloat);
}

TEST_CASE("blocks of one number arrive but for its rounding",
          "[exchange][quantized]") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool as_view = GENERATE(false, true);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16);
  run_ranks(size, [&](const Group& group) {
    auto plain = leaf({40, 3}, dtype);
    auto image = torch::ones({2, 3, 4, 5}, dtype)
                     .contiguous(torch::MemoryFormat::ChannelsLast)
                     .requires_grad_();
    Reducer reducer({{"plain", plain}, {"image", image}},
                    group,
                    quantized(group, 4)
                        .gradient_as_bucket_view(as_view)
                        .first_bucket_cap_mb(1e-6)
                        .bucket_cap_mb(1e-6));
    for (int step = 1; step <= 3; ++step) {
      plain.mutable_grad().reset();
      image.mutable_grad().reset();
      const double slope = step * (group->getRank() + 1.0);
      backward(reducer, slope * plain.sum() + 2 * slope * image.sum());
      const double mean = step * gauss(size) / size;
      const double rounding = dtype == torch::kBFloat16 ? 2e-2 : 1e-6;
      TORCH_CHECK(
          plain.grad().allclose(torch::full({40, 3}, mean, dtype), rounding));
      TORCH_CHECK(image.grad().allclose(
          torch::full({2, 3, 4, 5}, 2 * mean, dtype), rounding));
    }
  });
}

TEST_CASE("an 8-bit mean is as exact as it is said to be",
          "[exchange][quantized]") {
  const int size = GENERATE(1, 2, 3, 4);
  const int64_t block = GENERATE(4, 256);
  run_ranks(size, [&](const Group& group) {
    const int64_t numel = 2048;
    auto weight = leaf({numel});
    Reducer reducer({{"w", weight}}, group, quantized(group, block));
    for (int step = 0; step < 3; ++step) {
      weight.mutable_grad().reset();
      const auto gradient = [&](int rank) {
        return numbers(numel, step + 3 * rank);
      };
      backward(reducer, (weight * gradient(group->getRank())).sum());
      const auto largest = [&](const Tensor& tensor) {
        return tensor.view({-1, block}).abs().amax(1, true);
      };
      auto mean = torch::zeros({numel});
      auto bound = torch::zeros({numel / block, 1});
      for (int rank = 0; rank < size; ++rank) {
        mean += gradient(rank) / size;
        bound += largest(gradient(rank)) / size / 254;
      }
      // The second quantization includes the error of the first.
      bound += (largest(mean) + bound) / 254;
      const auto error = (weight.grad() - mean).abs().view({-1, block});
      TORCH_CHECK(error.le(bound * 1.001).all().item<bool>());
      TORCH_CHECK(error.amax().item<float>() > 0);  // it was quantized
    }
  });
}

TEST_CASE("quantized gradients are the same on all ranks, bit for bit",
          "[exchange][quantized]") {
  run_ranks(4, [&](const Group& group) {
    auto weight = leaf({3000});
    Reducer reducer({{"w", weight}}, group, quantized(group));
    for (int step = 0; step < 3; ++step) {
      weight.mutable_grad().reset();
      backward(reducer, (weight * numbers(3000, group->getRank())).sum());
      std::vector<Tensor> first{weight.grad().clone()};
      group->broadcast(first)->wait();
      TORCH_CHECK(first[0].equal(weight.grad()));
    }
  });
}

TEST_CASE("the bytes of integers and scales are sent",
          "[exchange][quantized]") {
  const int size = GENERATE(2, 4);
  run_ranks(size, [&](const Group& group) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    const int64_t numel = 4096;
    auto weight = leaf({numel});
    Reducer reducer({{"w", weight}}, counted, quantized(counted));
    backward(reducer, weight.sum());
    counted->take();
    backward(reducer, weight.sum());
    const auto bytes = counted->take();
    // A number has 4 bytes. The all-to-all and the all-gather each send (p-1)/p
    // of the code, together 2(p-1)/p, like an all-reduce of the same size.
    const int64_t code = 4 * numel / 4 + 4 * numel / 256;
    TORCH_CHECK(bytes.all_to_all == code, bytes.all_to_all);
    TORCH_CHECK(bytes.all_gather == code / size, bytes.all_gather);
    TORCH_CHECK(bytes.all_reduce == detail::kMarkNumel * 4);
  });
}

TEST_CASE("complex gradients are quantized as pairs", "[exchange][quantized]") {
  run_ranks(2, [](const Group& group) {
    auto wave = torch::ones({6}, torch::kComplexFloat).requires_grad_();
    Reducer reducer({{"wave", wave}}, group, quantized(group, 4));
    for (int step = 0; step < 2; ++step) {
      wave.mutable_grad().reset();
      const double slope = group->getRank() + 1.0;
      backward(reducer,
               slope * (torch::real(wave) + torch::imag(wave) * 2).sum());
      TORCH_CHECK(
          torch::real(wave.grad()).allclose(torch::full({6}, 1.5), 1e-2));
      TORCH_CHECK(torch::imag(wave.grad()).allclose(torch::full({6}, 3.0)));
    }
  });
}

TEST_CASE("inf and NaN reach all ranks, in their block alone",
          "[exchange][quantized]") {
  const double flaw = GENERATE(std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN());
  run_ranks(3, [&](const Group& group) {
    auto weight = leaf({24});
    Reducer reducer({{"w", weight}}, group, quantized(group, 4));
    auto slopes = torch::ones({24});
    if (group->getRank() == 1) {
      slopes[9] = flaw;
    }
    backward(reducer, (weight * slopes).sum());
    const auto finite = weight.grad().isfinite();
    TORCH_CHECK(!finite[9].item<bool>(), weight.grad());
    TORCH_CHECK(finite.slice(0, 0, 8).all().item<bool>(), weight.grad());
    TORCH_CHECK(finite.slice(0, 12).all().item<bool>(), weight.grad());
  });
}

TEST_CASE("inf does not stay in the padding", "[exchange][quantized]") {
  const bool as_view = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    auto weight = leaf({6});  // padded to two blocks of four
    Reducer reducer({{"w", weight}},
                    group,
                    quantized(group, 4).gradient_as_bucket_view(as_view));
    for (const double slope : {std::numeric_limits<double>::infinity(), 1.0}) {
      weight.mutable_grad().reset();
      backward(reducer, (weight * torch::full({6}, slope)).sum());
      TORCH_CHECK(weight.grad().isfinite().all().item<bool>() == (slope == 1),
                  weight.grad());
    }
  });
}

TEST_CASE("numbers of any size are quantized", "[quantized]") {
  for (const double scale : {0.0, 1e-40, 1e-30, 1.0, 1e30}) {
    const auto rows = torch::tensor({-1.0, 0.0, 0.5, 1.0, 0.25, 0.0, 0.0, 0.0})
                          .mul(scale)
                          .to(torch::kFloat)
                          .view({2, 4});
    const auto decoded = detail::dequantize(detail::quantize(rows, 4), 4);
    const auto bound = rows.abs().amax(1, true) / 253 + 1e-38;
    CHECK((decoded - rows).abs().le(bound).all().item<bool>());
    CHECK(decoded.ne(0).logical_and(rows.eq(0)).any().item<bool>() == false);
  }
}

TEST_CASE("a length of blocks that makes no sense is refused",
          "[exchange][quantized][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  CHECK_THROWS_WITH(QuantizedExchange(group, 0), Contains("got 0"));
  CHECK_THROWS_WITH(QuantizedExchange(group, 6), Contains("a multiple of 4"));
  auto table = torch::zeros({5, 2}).requires_grad_();
  CHECK_THROWS_WITH(
      Reducer({{"table", table, true}}, group, quantized(group)),
      Contains("Expected dense gradients") && Contains("parameter table"));
}

TEST_CASE("a missing gradient is told beside quantized ones",
          "[exchange][quantized][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    auto used = leaf({3});
    auto other = leaf({3});
    Reducer reducer(
        {{"used", used}, {"other", other}}, group, quantized(group));
    backward(reducer,
             group->getRank() == 1 ? used.sum() : used.sum() + other.sum());
  });
  CHECK_THAT(errors[1], Contains("got none on rank 1: other;"));
  CHECK_THAT(errors[0], Contains("another rank has left"));
}

TEST_CASE("a rank that has left ends a quantized exchange",
          "[exchange][quantized][errors]") {
  const auto errors = try_ranks(3, [](const Group& group) {
    auto weight = leaf({300});
    Reducer reducer({{"w", weight}}, group, quantized(group));
    backward(reducer, weight.sum());
    TORCH_CHECK(group->getRank() != 1, "no luck");
    backward(reducer, weight.sum());
  });
  CHECK_THAT(errors[1], Contains("no luck"));
  for (const int rank : {0, 2}) {
    CHECK_THAT(errors[rank],
               Contains("gradient bucket 1 of 1 failed, most likely because"));
  }
}

}  // namespace quantized_exchange_test
}  // namespace ddp
