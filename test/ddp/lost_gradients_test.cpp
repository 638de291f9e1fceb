// Gradients that a wrapper could fail to average without anybody noticing:
// what a program does to parameters, wrappers and outputs between steps.
#include <sstream>

#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace lost_gradients_test {

using Catch::Contains;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using torch::nn::Linear;
using Options = DistributedDataParallelOptions;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", Linear(2, 3));
    second = register_module("second", Linear(3, 1));
  }
  Tensor forward(const Tensor& x) { return second(first(x).tanh()); }
  Linear first{nullptr};
  Linear second{nullptr};
};
TORCH_MODULE(Net);

Options over(const Group& group) {
  return Options().process_group(group);
}

Tensor input(const Group& group) {
  return torch::full({2, 2}, group->getRank() + 1.0);
}

std::vector<char> file_of(const torch::nn::Module& module) {
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  module.save(archive);
  archive.save_to(stream);
  const auto text = stream.str();
  return {text.begin(), text.end()};
}

void load(torch::nn::Module& module, const std::vector<char>& file) {
  torch::serialize::InputArchive archive;
  archive.load_from(file.data(), file.size());
  module.load(archive);
}

/// A copy of `net` whose gradients are the means over ranks, made by hand.
Net averaged_by_hand(const Net& net, const Group& group) {
  Net mine;
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < mine->parameters().size(); ++i) {
    mine->parameters()[i].copy_(net->parameters()[i]);
  }
  torch::AutoGradMode with_grad(true);
  for (int rank = 0; rank < group->getSize(); ++rank) {
    mine->forward(torch::full({2, 2}, rank + 1.0))
        .sum()
        .div(group->getSize())
        .backward();
  }
  return mine;
}

/// One pass of the wrapper brings the mean over ranks.
void expect_average(DistributedDataParallel<NetImpl>& model,
                    Net net,
                    const Group& group) {
  const auto expected = averaged_by_hand(net, group);
  net->zero_grad();
  model(input(group)).sum().backward();
  for (const auto& item : net->named_parameters()) {
    const auto& grad = item.value().grad();
    const auto mean = expected->named_parameters()[item.key()].grad();
    TORCH_CHECK(grad.defined() && grad.allclose(mean),
                "Expected for ",
                item.key(),
                "\n",
                mean,
                "\nbut got\n",
                grad);
  }
}

TEST_CASE("a module that has loaded a file is averaged", "[ddp][lost]") {
  const int what = GENERATE(0, 1, 2, 3);
  const bool finds_unused = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(
        net, over(group).find_unused_parameters(finds_unused));
    const auto file = file_of(*net);
    const auto part = file_of(*net->first);
    expect_average(model, net, group);
    switch (what) {
      case 0:
        load(*net, file);
        break;
      case 1:
        load(*model, file);
        break;
      case 2:
        load(*net->first, part);
        break;
      default:
        net->to(torch::kDouble);
        net->to(torch::kFloat);
    }
    expect_average(model, net, group);
    expect_average(model, net, group);
  });
}

TEST_CASE("a file is loaded between forward and backward", "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    const auto part = file_of(*net->first);
    const auto expected = averaged_by_hand(net, group);
    const auto loss = model(input(group)).sum();
    load(*net->first, part);
    loss.backward();
    TORCH_CHECK(net->first->bias.grad().allclose(expected->first->bias.grad()));
    expect_average(model, net, group);
  });
}

TEST_CASE("a module that loads in its forward is averaged", "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    const auto file = file_of(*net);
    const auto expected = averaged_by_hand(net, group);
    model
        ->call([&](NetImpl& module) {
          load(module, file);
          return module.forward(input(group));
        })
        .sum()
        .backward();
    TORCH_CHECK(net->first->bias.grad().allclose(expected->first->bias.grad()));
  });
}

TEST_CASE("a module that is converted after it was wrapped is refused",
          "[ddp][lost]") {
  const auto errors = try_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    expect_average(model, net, group);
    net->to(torch::kDouble);
    model(input(group).to(torch::kDouble));
  });
  for (const auto& error : errors) {
    CHECK_THAT(
        error,
        Contains("Expected parameter first.weight to stay Float [3, 2]") &&
            Contains("but it is Double"));
  }
}

/// Two modules with one trunk.
struct Pair {
  Linear trunk{2, 3};
  struct HeadImpl : torch::nn::Module {
    explicit HeadImpl(const Linear& shared) {
      trunk = register_module("trunk", shared);
      head = register_module("head", Linear(3, 1));
    }
    Tensor forward(const Tensor& x) { return head(trunk(x)); }
    Linear trunk{nullptr};
    Linear head{nullptr};
  };
  std::shared_ptr<HeadImpl> actor = std::make_shared<HeadImpl>(trunk);
  std::shared_ptr<HeadImpl> critic = std::make_shared<HeadImpl>(trunk);
};

TEST_CASE("two wrappers that share parameters, in turns", "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Pair pair;
    DistributedDataParallel actor(pair.actor, over(group));
    DistributedDataParallel critic(pair.critic, over(group));
    for (int step = 0; step < 3; ++step) {
      for (auto* model : {&actor, &critic}) {
        pair.trunk->zero_grad();
        (*model)(input(group)).sum().backward();
        const auto& head = (*model)->module()->head->weight;
        const auto mean = head.detach()
                              .t()
                              .matmul(torch::ones({1, 2}))
                              .mul(2 * (1 + 2) / 2.0);
        TORCH_CHECK(pair.trunk->weight.grad().allclose(mean));
      }
    }
  });
}

TEST_CASE("two wrappers that share parameters, in one pass", "[ddp][lost]") {
  const bool swapped = GENERATE(false, true);
  const auto errors = try_ranks(2, [&](const Group& group) {
    Pair pair;
    DistributedDataParallel actor(pair.actor, over(group));
    DistributedDataParallel critic(pair.critic, over(group));
    const auto a = actor(input(group)).sum();
    const auto b = critic(input(group)).sum();
    (swapped ? b + a : a + b).backward();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("Expected parameter trunk.weight to be trained by one "
                        "DistributedDataParallel"));
  }
}

TEST_CASE("a new wrapper works while the one before lives", "[ddp][lost]") {
  const bool was_left = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel old(net, over(group));
    bool throws = true;
    if (was_left) {
      auto output = old(input(group));
      net->second->weight.register_hook([&](const Tensor& grad) {
        TORCH_CHECK(!throws, "out of memory");
        return grad;
      });
      bool has_thrown = false;
      try {
        output.sum().backward();
      } catch (const c10::Error&) {
        has_thrown = true;
      }
      TORCH_CHECK(has_thrown);
      throws = false;
    } else {
      old(input(group));  // its backward pass never comes
    }
    DistributedDataParallel model(net, over(group));
    for (int step = 0; step < 3; ++step) {
      expect_average(model, net, group);
    }
  });
}

TEST_CASE("the one before trains again", "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel old(net, over(group));
    expect_average(old, net, group);
    {
      DistributedDataParallel other(net, over(group));
      expect_average(other, net, group);
      expect_average(old, net, group);
      expect_average(other, net, group);
    }
    expect_average(old, net, group);
  });
}

TEST_CASE("a wrapper that has gone before backward is an error",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    Tensor loss;
    {
      DistributedDataParallel model(net, over(group));
      loss = model(input(group)).sum();
    }
    std::string error;
    try {
      loss.backward();
    } catch (const c10::Error& thrown) {
      error = thrown.what();
    }
    TORCH_CHECK(error.find("to live until backward()") != std::string::npos,
                "Expected an error that names the wrapper, but got: ",
                error);
  });
}

TEST_CASE("of two models in a pass one misses a gradient", "[ddp][lost]") {
  const bool ends_first = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    Net whole;
    Net other;
    DistributedDataParallel first(whole, over(group));
    DistributedDataParallel second(other, over(group));
    for (int step = 0; step < 2; ++step) {
      std::string error;
      try {
        const auto part = [&] {
          return first
              ->call([&](NetImpl& net) { return net.first(input(group)); })
              .sum();
        };
        const auto all = [&] { return second(input(group)).sum(); };
        // A pass meets first what was computed last.
        const auto early = ends_first ? all() : part();
        const auto late = ends_first ? part() : all();
        (early + late).backward();
      } catch (const c10::Error& thrown) {
        error = thrown.what();
      }
      TORCH_CHECK(error.find("second.weight") != std::string::npos,
                  "Expected an error that names second.weight, but got: ",
                  error);
    }
    expect_average(second, other, group);
    expect_average(first, whole, group);
  });
}

}  // namespace lost_gradients_test
}  // namespace ddp
