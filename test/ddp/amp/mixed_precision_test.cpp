#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/options.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace mixed_precision_test {

using Catch::Contains;
using test::Group;
using test::run_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

constexpr auto kFloat = torch::kFloat;

Options precise(const MixedPrecision& precision, const Group& group = nullptr) {
  return Options().mixed_precision(precision).process_group(group);
}

struct BuffersImpl : torch::nn::Module {
  BuffersImpl() {
    weight = register_parameter("weight", torch::ones({2}));
    scale = register_buffer("scale", torch::ones({2}));
    mine = register_buffer("mine", torch::ones({2}));
    steps = register_buffer("steps", torch::ones({2}, torch::kLong));
  }
  Tensor forward(const Tensor& x) { return x * weight * scale; }
  Tensor weight, scale, mine, steps;
};
TORCH_MODULE(Buffers);

TEST_CASE("buffers are converted, except ignored and integer ones", "[mixed]") {
  Buffers net;
  DistributedDataParallel model(
      net,
      precise(MixedPrecision().buffer_dtype(torch::kHalf))
          .params_and_buffers_to_ignore({"mine"}));
  CHECK(net->weight.scalar_type() == kFloat);
  CHECK(net->scale.scalar_type() == torch::kHalf);
  CHECK(net->mine.scalar_type() == kFloat);
  CHECK(net->steps.scalar_type() == torch::kLong);
  CHECK(net->named_buffers()["scale"].is_same(net->scale));
  model(torch::ones({2})).sum().backward();
  CHECK(net->weight.grad().scalar_type() == kFloat);
}

TEST_CASE("passes of all kinds with a reduce_dtype", "[mixed]") {
  const bool finds_unused = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    // All values are exact in bfloat16, so the mean has a closed form.
    torch::nn::Linear used(torch::nn::LinearOptions(2, 1).bias(false));
    torch::nn::Linear maybe(torch::nn::LinearOptions(2, 1).bias(false));
    torch::nn::Sequential net(used, maybe);
    DistributedDataParallel model(
        net,
        precise(MixedPrecision().reduce_dtype(torch::kBFloat16), group)
            .find_unused_parameters(finds_unused));
    const double slope = group->getRank() + 1.0;
    const auto loss = [&](bool with_all) {
      const auto x = torch::full({1, 2}, slope);
      auto sum = used(x).sum();
      return with_all ? sum + maybe(x).sum() : sum;
    };
    const auto expect = [](const Tensor& gradient, double value) {
      TORCH_CHECK(gradient.scalar_type() == kFloat &&
                      gradient.eq(value).all().item<bool>(),
                  "Expected ",
                  value,
                  ", but got ",
                  gradient);
    };
    const auto first = loss(true);
    const auto second = loss(true);
    first.backward();
    expect(used->weight.grad(), 1.5);
    second.backward();
    expect(used->weight.grad(), 3);

    net->zero_grad();
    {
      const NoSyncGuard no_sync(*model);
      loss(true).backward();
    }
    expect(maybe->weight.grad(), slope);
    loss(true).backward();
    expect(maybe->weight.grad(), 3);
    if (finds_unused) {
      net->zero_grad();
      loss(group->getRank() == 0).backward();
      expect(used->weight.grad(), 1.5);
      expect(maybe->weight.grad(), 0.5);
    }
  });
}

TEST_CASE("gradients travel in reduce_dtype", "[mixed]") {
  struct Wire {
    MixedPrecision precision;
    int64_t bytes;
  };
  const auto [precision, bytes] =
      GENERATE(Wire{MixedPrecision(), 4},
               Wire{MixedPrecision().reduce_dtype(torch::kBFloat16), 2},
               Wire{MixedPrecision().reduce_dtype(torch::kHalf), 2},
               Wire{MixedPrecision().reduce_dtype(torch::kDouble), 8});
  run_ranks(2, [&, &precision = precision, &bytes = bytes](const Group& group) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    torch::nn::Linear net(torch::nn::LinearOptions(1000, 1).bias(false));
    DistributedDataParallel model(net, precise(precision, counted));
    for (int step = 0; step < 2; ++step) {
      counted->take();
      model(torch::ones({1, 1000})).sum().backward();
      const auto sent = counted->take().all_reduce;
      TORCH_CHECK(sent >= 1000 * bytes && sent < 1000 * bytes + 200, sent);
    }
  });
}

TEST_CASE("dtypes that make no sense", "[mixed][errors]") {
  const auto error = [](const Options& options) {
    torch::nn::Linear net(2, 2);
    try {
      DistributedDataParallel model(net, options);
    } catch (const c10::Error& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string();
  };
  CHECK_THAT(error(precise(MixedPrecision().reduce_dtype(torch::kBool))),
             Contains("Expected reduce_dtype of mixed_precision to be") &&
                 Contains("but got Bool"));
  CHECK_THAT(error(precise(MixedPrecision().buffer_dtype(torch::kInt))),
             Contains("Expected buffer_dtype of mixed_precision to be"));
  const auto own = [] { return std::make_shared<NoExchange>(); };
  CHECK_THAT(
      error(precise(MixedPrecision().reduce_dtype(kFloat)).exchange(own())),
      Contains("without a reduce_dtype beside an exchange") &&
          Contains("CastExchange"));
  const auto alone = c10::make_intrusive<test::FakeBackend>(1);
  CHECK(error(precise(MixedPrecision().buffer_dtype(torch::kHalf), alone)
                  .exchange(own()))
            .empty());
}

}  // namespace mixed_precision_test
}  // namespace ddp
