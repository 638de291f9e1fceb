#include "ddp/nn/checkpoint_activations.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>
#include <vector>

#include <ATen/SequenceNumber.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "ddp/amp/autocast.h"
#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"
#include "test/support/random.h"
#include "test/support/rank_threads.h"

namespace ddp {
namespace checkpoint_activations_test {

using Catch::Contains;
using test::Group;
using test::random;
using test::run_ranks;
using torch::Tensor;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::nn::Tanh;
using Options = DistributedDataParallelOptions;

/// How NetImpl checkpoints its parts.
enum class How { plain, once, twice, nested };

/// An input layer, a block that is used three times, and an output layer.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(How how) : how_(how) {
    in = register_module("in", Linear(5, 6));
    block = register_module("block", Sequential(Linear(6, 6), Tanh()));
    out = register_module("out", Linear(6, 3));
    test::fill(*this, 1, 0.3);
  }

  Tensor forward(Tensor x) {
    x = torch::tanh(in(x));
    switch (how_) {
      case How::plain:
        return out(block->forward(block->forward(block->forward(x))));
      case How::once:
        x = checkpoint_activations(block, block->forward(x));
        return out(block->forward(x));
      case How::twice:
        x = checkpoint_activations(block, checkpoint_activations(block, x));
        return checkpoint_activations(
            [this](const Tensor& y) { return out(block->forward(y)); }, x);
      case How::nested:
        return checkpoint_activations(
            [this](const Tensor& y) {
              const auto z = checkpoint_activations(
                  [this](const Tensor& inner) {
                    return block->forward(checkpoint_activations(block, inner));
                  },
                  y);
              return out(block->forward(z));
            },
            x);
    }
    return x;
  }

  Linear in{nullptr};
  Sequential block{nullptr};
  Linear out{nullptr};

 private:
  How how_;
};
TORCH_MODULE(Net);

/// Relative and absolute tolerance. A nested part with two uses of a weight
/// sums their gradients first, so the order of additions differs.
double tolerance_of(How how) {
  return how == How::nested ? 1e-5 : 0;
}

void check_same_gradients(const torch::nn::Module& a,
                          const torch::nn::Module& b,
                          double tolerance = 0) {
  for (const auto& item : a.named_parameters()) {
    const auto expected = b.named_parameters()[item.key()].grad();
    const auto& grad = item.value().grad();
    TORCH_CHECK(
        grad.defined() && torch::allclose(grad, expected, tolerance, tolerance),
        item.key());
  }
}

TEST_CASE("checkpointed parts have the gradients of plain ones",
          "[checkpoint_activations]") {
  const auto how = GENERATE(How::once, How::twice, How::nested);
  const bool of_input = GENERATE(false, true);
  Net net(how), plain(How::plain);
  for (int step = 0; step < 3; ++step) {
    auto x = random(step, {4, 5}).requires_grad_(of_input);
    auto y = x.detach().requires_grad_(of_input);
    const auto loss = net(x).pow(2).sum();
    const auto expected = plain(y).pow(2).sum();
    CHECK(torch::equal(loss, expected));
    loss.backward();
    expected.backward();
    check_same_gradients(*net, *plain, tolerance_of(how));
    if (of_input) {
      CHECK(torch::allclose(x.grad(), y.grad()));
    }
  }
}

TEST_CASE("a hook of a checkpointed parameter sees the sum, once",
          "[checkpoint_activations]") {
  const auto how = GENERATE(How::twice, How::nested);
  Net net(how), plain(How::plain);
  std::vector<Tensor> seen;
  for (const auto& module : {net, plain}) {
    module->named_parameters()["block.0.weight"].register_hook(
        [&seen](const Tensor& gradient) {
          seen.push_back(gradient.clone());
          return gradient * 2;
        });
  }
  const auto x = random(3, {4, 5});
  net(x).sum().backward();
  plain(x).sum().backward();
  REQUIRE(seen.size() == 2);
  CHECK(torch::allclose(seen[0], seen[1]));
  check_same_gradients(*net, *plain, tolerance_of(how));
}

TEST_CASE("activations are freed and made again", "[checkpoint_activations]") {
  std::weak_ptr<void> activation;
  int runs = 0;
  const auto segment = [&](const Tensor& x) {
    ++runs;
    const auto token = std::make_shared<char>();
    activation = token;
    auto y = x * 2;
    // The hook lives as long as the graph of y.
    y.register_hook([token](const Tensor&) {});
    return y.exp();
  };
  const auto x = random(1, {3}).requires_grad_();
  auto y = checkpoint_activations(segment, x);
  CHECK(activation.expired());
  CHECK(runs == 1);
  const bool twice = GENERATE(false, true);
  y.sum().backward({}, /*keep_graph=*/twice);
  CHECK(runs == 2);
  CHECK(activation.expired());
  CHECK(torch::allclose(x.grad(), 2 * y));
  if (twice) {
    y.sum().backward();
    CHECK(torch::allclose(x.grad(), 4 * y));
  }
  CHECK_THROWS_WITH(y.sum().backward(), Contains("second time"));
}

TEST_CASE("arguments and results of checkpointed functions",
          "[checkpoint_activations]") {
  const auto a = random(1, {3}).requires_grad_();
  const auto b = random(2, {3}).requires_grad_();
  const auto constant = random(3, {3});
  SECTION("a tuple, also of tensors without gradient") {
    const auto [product, place, same, fixed] = checkpoint_activations(
        [](const Tensor& x, const Tensor& y, const Tensor& c) {
          return std::make_tuple(x * y, (x * y).argmax(), y, c * 2);
        },
        a,
        b,
        constant);
    CHECK(!place.requires_grad());
    CHECK(!fixed.requires_grad());
    CHECK(same.requires_grad());
    (product + same * fixed).sum().backward();
    CHECK(torch::equal(a.grad(), b));
    CHECK(torch::equal(b.grad(), a + constant * 2));
  }
  SECTION("a vector with an unused tensor, undefined inputs") {
    const auto parts = checkpoint_activations(
        [](const Tensor& x, const Tensor& none) {
          return std::vector<Tensor>{x * (none.defined() ? 5 : 2), x.exp()};
        },
        a,
        Tensor());
    parts[0].sum().backward();
    CHECK(torch::equal(a.grad(), torch::full({3}, 2.0)));
  }
  SECTION("nothing that needs a gradient") {
    const auto y =
        checkpoint_activations([](const Tensor& x) { return x * 2; }, constant);
    CHECK(!y.requires_grad());
    const torch::NoGradGuard no_grad;
    CHECK(!checkpoint_activations([](const Tensor& x) { return x * 2; }, a)
               .requires_grad());
  }
  SECTION("no inputs, parameters alone") {
    checkpoint_activations([&] { return a * b; }).sum().backward();
    CHECK(torch::equal(a.grad(), b));
  }
  SECTION("gradients that are not accumulated") {
    const auto y =
        checkpoint_activations([&](const Tensor& x) { return x * b; }, a);
    const auto grads = torch::autograd::grad({y.sum()}, {a, b});
    CHECK(torch::equal(grads[0], b));
    CHECK(torch::equal(grads[1], a));
    CHECK(!a.grad().defined());
    CHECK(!b.grad().defined());
  }
}

TEST_CASE("tensors with a history need not be inputs",
          "[checkpoint_activations]") {
  const bool by_other_thread = GENERATE(false, true);
  const auto x = random(1, {3}).requires_grad_();
  const auto w = random(2, {3}).requires_grad_();
  const auto gradients = [&](bool is_checkpointed) {
    x.mutable_grad().reset();
    w.mutable_grad().reset();
    Tensor outer, own;
    // Autograd orders nodes by the sequence numbers of their threads. The other
    // thread counts up to `later`, so its nodes count as newer than the
    // checkpoint's.
    const auto later = at::sequence_number::peek() + 1000;
    const auto make = [&] {
      do {
        outer = w.exp();
      } while (by_other_thread && at::sequence_number::peek() < later);
      own = outer.view({3});
    };
    by_other_thread ? std::thread(make).join() : make();
    const auto part = [outer, own](const Tensor& z) {
      return std::vector<Tensor>{z * outer + own.sin(), own};
    };
    for (int pass = 0; pass < 2; ++pass) {  // keeps the older graph
      const auto y =
          is_checkpointed ? checkpoint_activations(part, x) : part(x);
      (y[0].sum() + (y[1] * y[0]).sum()).backward({}, /*retain_graph=*/true);
    }
    (outer * 2).sum().backward();
    return std::vector<Tensor>{x.grad(), w.grad()};
  };
  const auto expected = gradients(false);
  const auto got = gradients(true);
  CHECK(torch::allclose(got[0], expected[0]));
  CHECK(torch::allclose(got[1], expected[1]));
}

TEST_CASE("the second forward draws the same random numbers",
          "[checkpoint_activations]") {
  torch::manual_seed(5);
  torch::nn::Dropout dropout(0.5);
  const auto x = torch::ones({1000}).requires_grad_();
  const auto y = checkpoint_activations(dropout, x);
  torch::rand({10});
  const auto before = at::detail::getDefaultCPUGenerator().get_state();
  y.sum().backward();
  CHECK(torch::equal(x.grad(), y));
  CHECK(x.grad().eq(0).any().item<bool>());
  CHECK(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
}

void draw_in_thread(std::vector<Tensor>& drawn) {
  std::thread([&drawn] { drawn.push_back(torch::rand({4})); }).join();
}

TEST_CASE("a part that draws nothing leaves the generators alone",
          "[checkpoint_activations]") {
  // Another thread, for example a data loader's, draws random numbers during
  // the second forward, or during both.
  const bool draws_in_forward = GENERATE(false, true);
  int forwards = 0;
  std::vector<Tensor> drawn;
  const auto x = torch::ones({3}).requires_grad_();
  const auto y = checkpoint_activations(
      [&](const Tensor& z) {
        if (++forwards == 2 || draws_in_forward) {
          draw_in_thread(drawn);
        }
        return z * 2;
      },
      x);
  y.sum().backward();
  REQUIRE(forwards == 2);
  CHECK(torch::equal(x.grad(), torch::full({3}, 2)));
  drawn.push_back(torch::rand({4}));
  for (size_t i = 1; i < drawn.size(); ++i) {
    CHECK_FALSE(torch::equal(drawn[i - 1], drawn[i]));
  }
}

TEST_CASE("a thread that draws while a part draws is told of",
          "[checkpoint_activations]") {
  const int when = GENERATE(1, 2);  // the forward during which the thread draws
  int forwards = 0;
  std::vector<Tensor> drawn;
  const auto x = torch::ones({1000}).requires_grad_();
  const auto y = checkpoint_activations(
      [&](const Tensor& z) {
        if (++forwards == when) {
          draw_in_thread(drawn);
        }
        return torch::dropout(z, 0.5, true);
      },
      x);
  const auto before = at::detail::getDefaultCPUGenerator().get_state();
  CHECK_THROWS_WITH(y.sum().backward(),
                    Contains("Expected no other thread to draw from the CPU's "
                             "default generator"));
  CHECK(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
}

TEST_CASE("a part that draws may compute gradients through another",
          "[checkpoint_activations]") {
  torch::nn::Dropout dropout(0.5);
  const auto x = torch::ones({1000}).requires_grad_();
  const auto y = checkpoint_activations(
      [&](const Tensor& z) {
        const auto inner = z.detach().requires_grad_();
        const auto kept = checkpoint_activations(dropout, inner);
        return z * torch::autograd::grad({kept.sum()}, {inner})[0];
      },
      x);
  auto backward = std::async(std::launch::async, [&] { y.sum().backward(); });
  if (backward.wait_for(test::kRankPatience) != std::future_status::ready) {
    std::fputs("the backward pass waits for itself\n", stderr);
    std::abort();  // the blocked thread cannot be stopped
  }
  backward.get();
  CHECK(torch::equal(x.grad(), y));
  CHECK(x.grad().eq(0).any().item<bool>());
}

TEST_CASE("backward passes of two threads draw again one after the other",
          "[checkpoint_activations]") {
  torch::nn::Dropout dropout(0.5);
  for (int round = 0; round < 200; ++round) {
    std::array<Tensor, 2> inputs, outputs;
    for (size_t i = 0; i < 2; ++i) {
      inputs[i] = torch::ones({1000}).requires_grad_();
      outputs[i] = checkpoint_activations(dropout, inputs[i]);
    }
    const auto before = at::detail::getDefaultCPUGenerator().get_state();
    std::thread other([&] { outputs[1].sum().backward(); });
    outputs[0].sum().backward();
    other.join();
    REQUIRE(
        torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
    REQUIRE(torch::equal(inputs[0].grad(), outputs[0]));
    REQUIRE(torch::equal(inputs[1].grad(), outputs[1]));
  }
}

TEST_CASE("the second forward computes in the autocast of the first",
          "[checkpoint_activations]") {
  const bool outside = GENERATE(false, true);  // autocast during backward()
  // A cached narrow copy of a weight accumulates its gradients in bfloat16.
  const bool keeps = GENERATE(false, true);
  Net net(How::twice), plain(How::plain);
  const auto x = random(1, {4, 5});
  std::vector<Tensor> losses;
  for (const auto& module : {net, plain}) {
    const AutocastGuard autocast(torch::kCPU,
                                 AutocastOptions().cache_enabled(keeps));
    Net once = module;
    // The cache may hold a copy of this weight from outside of the parts.
    const auto narrow =
        torch::linear(torch::tanh(once->in(x)), once->block->parameters()[0]);
    CHECK(narrow.scalar_type() == torch::kBFloat16);
    losses.push_back(once(x).to(torch::kFloat).pow(2).sum() + narrow.sum());
  }
  CHECK(torch::equal(losses[0], losses[1]));
  for (const auto& loss : losses) {
    const AutocastGuard autocast(torch::kCPU,
                                 AutocastOptions().enabled(outside));
    loss.backward();
  }
  check_same_gradients(*net, *plain, keeps ? 0.02 : 0);
}

TEST_CASE("a checkpointed batch norm counts a batch once",
          "[checkpoint_activations]") {
  torch::nn::BatchNorm1d norm(3), plain(3);
  for (int step = 0; step < 3; ++step) {
    const auto x = random(step, {5, 3}).requires_grad_();
    const auto y = x.detach().requires_grad_();
    const auto loss = checkpoint_activations(norm, x).pow(3).sum() +
                      checkpoint_activations(norm, x * 2).sum();
    (plain(y).pow(3).sum() + plain(y * 2).sum()).backward();
    loss.backward();
    CHECK(torch::equal(x.grad(), y.grad()));
    check_same_gradients(*norm, *plain);
    CHECK(torch::equal(norm->running_var, plain->running_var));
    CHECK(torch::equal(norm->running_mean, plain->running_mean));
    CHECK(norm->num_batches_tracked.item<int64_t>() == 2 * (step + 1));
  }
}

TEST_CASE("parameters frozen and thawed around a checkpoint",
          "[checkpoint_activations]") {
  const auto a = random(1, {3}).requires_grad_();
  const auto b = random(2, {3}).requires_grad_();
  const auto x = random(3, {3}).requires_grad_();
  b.requires_grad_(false);
  const auto y = checkpoint_activations(
      [&](const Tensor& input) { return input * a * b; }, x);
  a.requires_grad_(false);
  b.requires_grad_();
  y.sum().backward();
  // The same results as without a checkpoint.
  CHECK(!a.grad().defined());
  CHECK(!b.grad().defined());
  CHECK(torch::allclose(x.grad(), a * b.detach()));
}

TEST_CASE("functions that cannot be checkpointed are errors",
          "[checkpoint_activations][errors]") {
  const auto x = random(1, {3}).requires_grad_();
  SECTION("a tensor from outside that is another one") {
    auto outer = x * 2;
    const auto y =
        checkpoint_activations([&](const Tensor& z) { return z * outer; }, x);
    outer = x * 2;
    CHECK_THROWS_WITH(y.sum().backward(),
                      Contains("no longer uses a tensor from outside of shape "
                               "[3]"));
  }
  SECTION("an input that is changed") {
    CHECK_THROWS_WITH(
        checkpoint_activations(
            [](const Tensor& a, Tensor b) { return a * b.mul_(2); },
            x,
            random(2, {3})),
        Contains("has changed input 1 in place"));
  }
  SECTION("an input that has changed since") {
    auto input = x * 1;
    const auto y =
        checkpoint_activations([](const Tensor& a) { return a.exp(); }, input);
    input.mul_(2);
    CHECK_THROWS_WITH(y.sum().backward(), Contains("inplace operation"));
  }
  SECTION("another result the second time") {
    int calls = 0;
    const auto y = checkpoint_activations(
        [&calls](const Tensor& a) { return ++calls == 1 ? a : a[0]; }, x);
    CHECK_THROWS_WITH(y.sum().backward(),
                      Contains("output 0 was Float[3] and is Float[];"));
  }
  SECTION("a parameter that is not used the second time") {
    int calls = 0;
    const auto w = random(2, {3}).requires_grad_();
    const auto y = checkpoint_activations(
        [&](const Tensor& a) { return ++calls == 1 ? a * w : a * 2; }, x);
    CHECK_THROWS_WITH(y.sum().backward(),
                      Contains("no longer uses a parameter of shape [3]"));
  }
  SECTION("a backward pass that is to be differentiated") {
    const auto y =
        checkpoint_activations([](const Tensor& a) { return a.exp(); }, x);
    CHECK_THROWS_WITH(y.sum().backward({}, true, true),
                      Contains("without create_graph"));
  }
  SECTION("an exception of the second forward leaves all as it was") {
    const AutocastGuard autocast(torch::kCPU, AutocastOptions().enabled(false));
    int calls = 0;
    const auto y = checkpoint_activations(
        [&calls](const Tensor& a) {
          TORCH_CHECK(++calls == 1, "out of luck");
          return a + torch::rand({3});
        },
        x);
    const auto before = at::detail::getDefaultCPUGenerator().get_state();
    CHECK_THROWS_WITH(y.sum().backward(), Contains("out of luck"));
    CHECK(
        torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  }
}

TEST_CASE("a wrapper may be checkpointed as a whole",
          "[checkpoint_activations]") {
  run_ranks(2, [](const Group& group) {
    Linear net(3, 1);
    DistributedDataParallel model(net, Options().process_group(group));
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      const auto x = torch::full({1, 3}, group->getRank() + 1.0);
      checkpoint_activations(model, x).sum().backward();
      TORCH_CHECK(net->weight.grad().eq(1.5).all().item<bool>());
    }
  });
}

TEST_CASE("a checkpointed model under DDP trains as the plain one",
          "[checkpoint_activations]") {
  const auto how = GENERATE(How::once, How::twice, How::nested);
  const bool as_view = GENERATE(false, true);
  run_ranks(3, [&](const Group& group) {
    Net net(how), plain(How::plain);
    const auto options = Options()
                             .process_group(group)
                             .gradient_as_bucket_view(as_view)
                             .first_bucket_cap_mb(1e-4)
                             .bucket_cap_mb(1e-4);
    DistributedDataParallel model(net, options);
    DistributedDataParallel plain_model(plain, options);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    torch::optim::SGD plain_optimizer(plain_model->parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      const auto x = random(10 * step + group->getRank(), {4, 5});
      optimizer.zero_grad();
      plain_optimizer.zero_grad();
      model(x).pow(2).sum().backward();
      plain_model(x).pow(2).sum().backward();
      check_same_gradients(*net, *plain, tolerance_of(how));
      optimizer.step();
      plain_optimizer.step();
    }
  });
}

}  // namespace checkpoint_activations_test
}  // namespace ddp
