// Buffers that ranks combine by a hook, instead of copying rank 0's.
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"
#include "test/support/transports.h"

namespace ddp {
namespace buffer_hook_test {

using Catch::Contains;
using test::any_transport;
using test::FakeBackend;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

/// Multiplies its input by a weight and by a buffer, `seen`.
struct SeeImpl : torch::nn::Module {
  SeeImpl() {
    weight = register_parameter("weight", torch::ones({2}));
    seen = register_buffer("seen", torch::ones({2}));
    own = register_buffer("own", torch::zeros({1}));
    count = register_buffer("count", torch::zeros({1}, torch::kLong));
    wide = register_buffer("wide", torch::zeros({2, 2}, torch::kComplexDouble));
  }
  Tensor forward(double x) { return (weight * seen * x).sum(); }
  Tensor weight, seen, own, count, wide;
};
TORCH_MODULE(See);

TEST_CASE("statistics of batch norms are averaged over ranks",
          "[ddp][buffers]") {
  const int size = GENERATE(1, 2, 3);
  run_ranks(size, [&](const Group& group) {
    torch::nn::BatchNorm1d norm(2);
    DistributedDataParallel model(
        norm, Options().process_group(group).buffer_hook(average_buffers));
    double mean = 0;
    double variance = 1;
    for (int step = 1; step <= 3; ++step) {
      // Both columns hold x (1 - x) and x (1 + x): mean x, unbiased variance 2
      // x^4.
      const double x = group->getRank() + step;
      const auto data = torch::tensor({{1 - x, 1 - x}, {1 + x, 1 + x}});
      model(data.to(torch::kFloat) * x).sum().backward();
      double means = 0;
      double variances = 0;
      for (int rank = 0; rank < size; ++rank) {
        means += rank + step;
        variances += 2 * std::pow(rank + step, 4);
      }
      mean = 0.9 * mean + 0.1 * means / size;
      variance = 0.9 * variance + 0.1 * variances / size;
      TORCH_CHECK(norm->running_mean.allclose(torch::full({2}, mean)),
                  norm->running_mean,
                  mean);
      TORCH_CHECK(norm->running_var.allclose(torch::full({2}, variance)),
                  norm->running_var,
                  variance);
      TORCH_CHECK(norm->num_batches_tracked.item<int64_t>() == step);
    }
  });
}

TEST_CASE("all kinds of buffers are averaged", "[ddp][buffers]") {
  run_ranks(3, [](const Group& group) {
    const int rank = group->getRank();
    See net;
    DistributedDataParallel model(
        net, Options().process_group(group).buffer_hook(average_buffers));
    net->seen.fill_(rank + 1);
    net->named_buffers(false)["own"].set_data(
        torch::full({1}, 60000.0, torch::kHalf));  // 3 of them overflow half
    net->count.fill_(7 + rank);
    net->wide.fill_(c10::complex<double>(rank, 3.0 * rank));
    model(1).backward();
    TORCH_CHECK(net->seen.equal(torch::full({2}, 2.0)), net->seen);
    TORCH_CHECK(net->buffers()[1].allclose(
        torch::full({1}, 60000.0, torch::kHalf), 1e-2));
    TORCH_CHECK(net->count.item<int64_t>() == 7);
    TORCH_CHECK(net->wide.allclose(torch::full(
        {2, 2}, c10::complex<double>(1, 3), torch::kComplexDouble)));
  });
}

TEST_CASE("a hook has the buffers that ranks share, once a pass",
          "[ddp][buffers]") {
  run_ranks(2, [](const Group& group) {
    See net;
    std::vector<std::vector<std::string>> calls;
    bool is_same_group = true;
    DistributedDataParallel model(
        net,
        Options()
            .process_group(group)
            .params_and_buffers_to_ignore({"own"})
            .buffer_hook([&](c10d::Backend& ranks, const NamedBuffers& all) {
              calls.push_back(all.keys());
              is_same_group &= &ranks == group.get();
              all["seen"].fill_(5);
              TORCH_CHECK(!torch::GradMode::is_enabled());
            }));
    {
      NoSyncGuard no_sync(*model);
      model(1).backward();
    }
    {
      const torch::NoGradGuard no_grad;
      model(1);
    }
    TORCH_CHECK(calls.empty() && net->seen.equal(torch::ones({2})));
    // Both graphs use the buffer; the first backward pass changes it.
    const auto first = model(1);
    const auto second = model(1);
    first.backward();
    TORCH_CHECK(net->seen.equal(torch::full({2}, 5.0)));
    second.backward();
    TORCH_CHECK(calls.size() == 2 && is_same_group);
    for (const auto& names : calls) {
      TORCH_CHECK((names == std::vector<std::string>{"seen", "count", "wide"}),
                  names);
    }
  });
}

TEST_CASE("a hook that throws on a rank", "[ddp][buffers][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    See net;
    DistributedDataParallel model(net,
                                  Options().process_group(group).buffer_hook(
                                      [&](c10d::Backend&, const NamedBuffers&) {
                                        TORCH_CHECK(group->getRank() == 1,
                                                    "no statistics");
                                      }));
    for (int pass = 0; pass < 2; ++pass) {
      model(1).backward();
    }
  });
  CHECK_THAT(errors[0], Contains("no statistics"));
  CHECK_THAT(errors[1], Contains("another rank has left"));
}

/// A grid that the forward makes as large as its input.
struct GridImpl : torch::nn::Module {
  GridImpl() {
    scale = register_parameter("scale", torch::ones({1}));
    grid = register_buffer("grid", torch::zeros({1}));
    fixed = register_buffer("fixed", torch::zeros({2}));
  }
  torch::Tensor forward(std::vector<int64_t> sizes) {
    const torch::NoGradGuard no_grad;
    grid.set_data(torch::ones(sizes));
    const torch::AutoGradMode with_grad(true);
    return (scale * grid).sum();
  }
  torch::Tensor scale, grid, fixed;
};
TORCH_MODULE(Grid);

TEST_CASE("buffers of other shapes on a rank are an error with names",
          "[ddp][buffers][errors]") {
  using Sizes = std::vector<int64_t>;
  const bool finds_unused = GENERATE(false, true);
  const int when = GENERATE(0, 2, 3);  // 3: only the odd rank changes
  const auto odd_sizes = GENERATE(Sizes{7}, Sizes{2, 2});
  const auto& transport = any_transport();
  if (transport.is_gpu) {
    return;  // the ranks do not compare
  }
  const auto errors = transport.try_ranks(3, [&](const Group& group, auto) {
    Grid net;
    DistributedDataParallel model(
        net,
        Options().process_group(group).find_unused_parameters(finds_unused));
    for (int pass = 0; pass < 4; ++pass) {
      // Equal changes of all ranks are none.
      const bool is_odd = pass == when && group->getRank() == 1;
      model(is_odd ? odd_sizes : Sizes{pass == 1 ? 5 : 4}).backward();
    }
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("on ranks 0, 2: grid of Float [4]") &&
                   Contains(c10::str("on rank 1: grid of Float ",
                                     torch::IntArrayRef(odd_sizes))));
  }
}

TEST_CASE("a buffer that a backward changes on a rank is an error in its pass",
          "[ddp][buffers][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    Grid net;
    DistributedDataParallel model(net, Options().process_group(group));
    const auto loss = model(std::vector<int64_t>{4});
    if (group->getRank() == 1) {
      loss.register_hook([&](const torch::Tensor& /*grad*/) {
        net->fixed.set_data(torch::ones({7}));
      });
    }
    loss.backward();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("on rank 1: fixed of Float [7]"));
  }
}

/// A parameter, and a layer with a buffer.
struct HolderImpl : torch::nn::Module {
  explicit HolderImpl(c10::Device device) {
    weight = register_parameter("weight", torch::ones({2}, device));
    register_module("layer", layer_with(torch::zeros({2}, device)));
  }
  static std::shared_ptr<torch::nn::Module> layer_with(const Tensor& buffer) {
    auto layer = std::make_shared<torch::nn::Module>();
    layer->register_buffer("seen", buffer);
    return layer;
  }
  Tensor forward(double x) { return weight.sum() * x; }
  Tensor weight;
};
TORCH_MODULE(Holder);

TEST_CASE("buffers made or replaced after the wrap are copied",
          "[ddp][buffers]") {
  enum class How { registered, in_a_late_module, replaced, reshaped };
  const auto how = GENERATE(
      How::registered, How::in_a_late_module, How::replaced, How::reshaped);
  const bool averages = GENERATE(false, true);
  const bool finds_unused = GENERATE(false, true);
  const auto& transport = any_transport();
  transport.run_ranks(2, [&](const Group& group, c10::Device device) {
    Holder net(device);
    DistributedDataParallel model(
        net,
        Options()
            .process_group(group)
            .find_unused_parameters(finds_unused)
            .buffer_hook(averages ? BufferHook(average_buffers) : nullptr));
    for (int step = 1; step <= 3; ++step) {
      const auto late = torch::zeros({3}, device);
      if (how == How::reshaped) {
        net->buffers()[0].set_data(torch::zeros({2 + step}, device));
      } else if (how == How::replaced) {
        net->replace_module("layer", HolderImpl::layer_with(late));
      } else if (step == 2 && how == How::registered) {
        net->register_buffer("late", late);
      } else if (step == 2) {
        net->register_module("late", HolderImpl::layer_with(late));
      }
      for (auto& buffer : net->buffers()) {
        buffer.fill_(2 * group->getRank() + step);
      }
      model(1).backward();
      for (const auto& item : net->named_buffers()) {
        TORCH_CHECK(
            item.value().cpu().eq(step + (averages ? 1 : 0)).all().item<bool>(),
            "step ",
            step,
            ": ",
            item.key(),
            " is ",
            item.value());
      }
    }
  });
}

TEST_CASE("options that exclude a buffer hook are refused",
          "[ddp][buffers][errors]") {
  const auto options = Options()
                           .process_group(c10::make_intrusive<FakeBackend>(2))
                           .buffer_hook(average_buffers);
  CHECK_THROWS_WITH(
      DistributedDataParallel(See(), Options(options).broadcast_buffers(false)),
      Contains(
          "Expected broadcast_buffers with a buffer_hook, but got it off"));
  for (const auto& error : try_ranks(2, [](const Group& group) {
         DistributedDataParallel model(
             See(),
             Options().process_group(group).buffer_hook(average_buffers));
         Join join({*model});
       })) {
    CHECK_THAT(error,
               Contains("has a buffer_hook, which does not know the ranks"));
  }
}

}  // namespace buffer_hook_test
}  // namespace ddp
