// Steps with more than one forward or backward pass: several forwards, several
// outputs, outputs that are not used, parameters that are used twice, and
// passes inside passes.
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace graphs_test {

using Catch::Contains;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

Options over(const Group& group) {
  return Options().process_group(group);
}

Tensor number(double value) {
  return torch::full({1}, value, torch::kDouble);
}

void expect(const Tensor& tensor, double value) {
  TORCH_CHECK(tensor.defined() && test::all_equal(tensor, value),
              "Expected ",
              value,
              ", but got ",
              tensor);
}

/// Returns a x and b x; both parameters have one element.
struct ForkImpl : torch::nn::Module {
  ForkImpl() {
    a = register_parameter("a", number(1));
    b = register_parameter("b", number(1));
  }
  std::tuple<Tensor, Tensor> forward(const Tensor& x) { return {a * x, b * x}; }
  Tensor a, b;
};
TORCH_MODULE(Fork);

/// y = norm(x)^3, with the running statistics of a batch norm.
struct NormImpl : torch::nn::Module {
  NormImpl() {
    norm = register_module(
        "norm",
        torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(2).momentum(0.5)));
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return norm(x).pow(3); }
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Norm);

Tensor batch(const Group& group, int64_t step) {
  const auto generator =
      at::detail::createCPUGenerator(10 * step + group->getRank());
  return torch::randn({4, 2}, generator, torch::kDouble);
}

/// Returns the gradients of `loss` without a wrapper, averaged over ranks.
std::vector<Tensor> mean_gradients(const Group& group,
                                   const Tensor& loss,
                                   const std::vector<Tensor>& parameters) {
  auto gradients = torch::autograd::grad({loss}, parameters);
  for (auto& gradient : gradients) {
    gradient /= group->getSize();
    std::vector<Tensor> sum{gradient};
    group->allreduce(sum)->wait();
  }
  return gradients;
}

// Between the passes rank 0 broadcasts its statistics. This must not count as a
// change of tensors that the second graph has saved.
TEST_CASE("two forwards, then their two backwards, with batch norm",
          "[graphs]") {
  const bool training = GENERATE(true, false);
  const int size = GENERATE(2, 3);
  run_ranks(size, [&](const Group& group) {
    Norm net, plain;
    DistributedDataParallel model(net, over(group));
    net->train(training);
    plain->train(training);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const auto first = model(batch(group, 2 * step)).sum();
      const auto second = model(batch(group, 2 * step + 1)).sum();
      first.backward();
      second.backward();
      const auto loss = plain(batch(group, 2 * step)).sum() +
                        plain(batch(group, 2 * step + 1)).sum();
      const auto expected = mean_gradients(group, loss, plain->parameters());
      TORCH_CHECK(net->norm->weight.grad().allclose(expected[0]));
      TORCH_CHECK(net->norm->bias.grad().allclose(expected[1]));
      std::vector<Tensor> mean{net->norm->running_mean.clone()};
      group->broadcast(mean)->wait();
      TORCH_CHECK(torch::equal(mean[0], net->norm->running_mean));
    }
  });
}

TEST_CASE("two outputs, each with a backward pass of its own", "[graphs]") {
  const bool finds_unused = GENERATE(false, true);
  const bool as_view = GENERATE(false, true);
  const auto errors = try_ranks(3, [&](const Group& group) {
    Fork net;
    DistributedDataParallel model(
        net,
        over(group).gradient_as_bucket_view(as_view).find_unused_parameters(
            finds_unused));
    for (int step = 1; step <= 3; ++step) {
      net->zero_grad();
      const auto [a, b] = model(number(step * group->getRank()));
      a.backward();
      expect(net->a.grad(), step);
      TORCH_CHECK(!net->b.grad().defined());
      (2 * b).backward();
      expect(net->a.grad(), step);
      expect(net->b.grad(), 2 * step);
    }
  });
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    CHECK_THAT(errors[rank],
               finds_unused
                   ? Contains("")
                   : Contains(c10::str("got none on rank ", rank, ": b;")));
    CHECK(errors[rank].empty() == finds_unused);
  }
}

TEST_CASE("an output that nobody uses", "[graphs]") {
  run_ranks(3, [&](const Group& group) {
    Fork net;
    DistributedDataParallel model(net,
                                  over(group).find_unused_parameters(true));
    for (int step = 1; step <= 4; ++step) {
      net->zero_grad();
      const auto [a, b] = model(number(step * group->getRank()));
      // On odd steps only rank 1 uses the second output.
      if (step % 2 == 1 && group->getRank() == 1) {
        (a + 3 * b).backward();
      } else {
        a.backward();
      }
      expect(net->a.grad(), step);
      if (step % 2 == 1) {
        expect(net->b.grad(), step);
      } else {
        TORCH_CHECK(!net->b.grad().defined());
      }
    }
  });
}

TEST_CASE("forwards with ignored outputs only", "[graphs]") {
  const int ignores = GENERATE(0, 1, 2);  // a rank, or 2: both
  run_ranks(2, [&](const Group& group) {
    Norm net;
    DistributedDataParallel model(net, over(group));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      for (int i = 0; i < step; ++i) {
        if (ignores == 2 || ignores == group->getRank()) {
          model(batch(group, 50 + i));
        }
      }
      const auto x = batch(group, step);
      model(x).sum().backward();
      Norm plain;
      const auto expected =
          mean_gradients(group, plain(x).sum(), plain->parameters());
      TORCH_CHECK(net->norm->weight.grad().allclose(expected[0]));
    }
  });
}

/// y = a (a x) + other. Parameter a has two names and is used twice.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl() {
    first = register_parameter("first", number(2));
    second = register_parameter("second", first);
    other = register_parameter("other", number(1));
  }
  Tensor forward(const Tensor& x) { return second * (first * x) + other; }
  Tensor first, second, other;
};
TORCH_MODULE(Twice);

TEST_CASE("a parameter used twice, in one forward and in two", "[graphs]") {
  const bool as_view = GENERATE(false, true);
  const bool tiny_buckets = GENERATE(false, true);
  run_ranks(3, [&](const Group& group) {
    Twice net;
    auto options = over(group).gradient_as_bucket_view(as_view);
    if (tiny_buckets) {
      options.first_bucket_cap_mb(1e-6).bucket_cap_mb(1e-6);
    }
    DistributedDataParallel model(net, options);
    for (int step = 1; step <= 3; ++step) {
      net->zero_grad();
      const auto x = number(step * group->getRank());
      (model(x) + 2 * model(x)).backward();
      expect(net->first.grad(), 3 * 2 * 2 * step);
      expect(net->other.grad(), 3);
    }
  });
}

/// The inner pass runs through other parameters of the model, without or with a
/// forward of the wrapper.
TEST_CASE("a backward pass inside a backward pass", "[graphs]") {
  const bool own_forward = GENERATE(false, true);
  run_ranks(3, [&](const Group& group) {
    Fork net;
    DistributedDataParallel model(net, over(group));
    for (int step = 1; step <= 3; ++step) {
      net->zero_grad();
      const auto x = number(step * group->getRank());
      auto a = std::get<0>(model(x));
      a.register_hook([&](const Tensor&) {
        const torch::AutoGradMode with_graph(true);
        if (own_forward) {
          std::get<1>(model(x)).backward();
        } else {
          (net->b * x).backward();
        }
      });
      (a * 1).backward();
      expect(net->a.grad(), step);
      expect(net->b.grad(), step);
    }
  });
}

}  // namespace graphs_test
}  // namespace ddp
