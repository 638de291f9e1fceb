// Gradients that a wrapper could silently fail to average: changes that a
// program makes to parameters, wrappers and outputs between steps.
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <torch/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/rnn.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/job/backends.h"
#include "ddp/job/monitored_backend.h"
#include "test/support/catch.h"
#include "test/support/gradients.h"
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

/// Returns a copy of `net` with the means over ranks as gradients, computed
/// without a wrapper.
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

/// Checks that one pass of the wrapper averages the gradients over ranks.
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

TEST_CASE("a module that loads before its forward is averaged", "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    const auto file = file_of(*net);
    const auto expected = averaged_by_hand(net, group);
    load(*net, file);
    net->forward(input(group)).sum().backward();
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

/// Two modules that share a trunk.
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

/// Returns the trunk's gradient after one pass of the wrapper: the mean over
/// two ranks.
Tensor trunk_mean(const Pair::HeadImpl& module) {
  return module.head->weight.detach()
      .t()
      .matmul(torch::ones({1, 2}))
      .mul(2 * (1 + 2) / 2.0);
}

TEST_CASE("a pass after another wrapper has claimed a shared parameter",
          "[ddp][lost]") {
  const bool finds_unused = GENERATE(false, true);
  const auto errors = try_ranks(2, [&](const Group& group) {
    Pair pair;
    const auto options = over(group).find_unused_parameters(finds_unused);
    DistributedDataParallel actor(pair.actor, options);
    DistributedDataParallel critic(pair.critic, options);
    const auto first = actor(input(group)).sum();
    const auto second = critic(input(group)).sum();
    second.backward();
    TORCH_CHECK(pair.trunk->weight.grad().allclose(trunk_mean(*pair.critic)));
    first.backward();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("Expected parameter trunk.weight"));
  }
}

TEST_CASE("a shared parameter is frozen for one of two wrappers",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Pair pair;
    DistributedDataParallel actor(pair.actor, over(group));
    DistributedDataParallel critic(pair.critic, over(group));
    for (int step = 0; step < 3; ++step) {
      pair.trunk->zero_grad();
      actor(input(group)).sum().backward();
      const auto kept = pair.trunk->weight.grad().clone();
      TORCH_CHECK(kept.allclose(trunk_mean(*pair.actor)));

      for (auto& parameter : pair.trunk->parameters()) {
        parameter.requires_grad_(false);
      }
      pair.critic->head->zero_grad();
      critic(input(group)).sum().backward();
      TORCH_CHECK(
          pair.critic->head->bias.grad().allclose(torch::full({1}, 2.0)));
      TORCH_CHECK(pair.trunk->weight.grad().equal(kept));
      for (auto& parameter : pair.trunk->parameters()) {
        parameter.requires_grad_(true);
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
               Contains("Expected parameter trunk.weight to be trained by the "
                        "DistributedDataParallel"));
  }
}

TEST_CASE("a new wrapper works while an older one lives", "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel old(net, over(group));
    old(input(group));  // no backward pass follows
    DistributedDataParallel model(net, over(group));
    for (int step = 0; step < 3; ++step) {
      expect_average(model, net, group);
    }
  });
}

TEST_CASE("an older wrapper trains again", "[ddp][lost]") {
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

TEST_CASE("two wrappers of one module train while a parameter is frozen",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel first(net, over(group));
    DistributedDataParallel second(net, over(group));
    const auto train = [&](DistributedDataParallel<NetImpl>& model) {
      const auto expected = averaged_by_hand(net, group);
      net->zero_grad();
      model(input(group)).sum().backward();
      const auto mean = expected->second->weight.grad();
      TORCH_CHECK(net->second->weight.grad().allclose(mean));
    };
    net->first->bias.requires_grad_(false);
    train(first);
    train(second);
    net->first->bias.requires_grad_(true);
    expect_average(first, net, group);
    expect_average(second, net, group);
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

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    net = register_module("net", Net());
    norm = register_module("norm", torch::nn::BatchNorm1d(1));
  }
  Tensor forward(const Tensor& x) { return norm(net(x)); }
  Net net{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST_CASE("a module trains by itself once its wrapper has gone",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    {
      DistributedDataParallel model(net, over(group));
      expect_average(model, net, group);
    }
    net->zero_grad();
    net(input(group)).sum().backward();
    const auto own = torch::full({1}, 2.0);  // of two samples
    TORCH_CHECK(net->second->bias.grad().allclose(own));
  });
}

// As with log-probabilities that the forward of a policy keeps in a member.
TEST_CASE("a pass that starts at a member of the module is averaged",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    struct KeepsImpl : torch::nn::Module {
      KeepsImpl() { net = register_module("net", Net()); }
      Tensor forward(const Tensor& x) {
        hidden = net->first(x).tanh();
        return net->second(hidden);
      }
      Net net{nullptr};
      Tensor hidden;
    };
    const auto module = std::make_shared<KeepsImpl>();
    DistributedDataParallel model(module,
                                  over(group).find_unused_parameters(true));
    for (int step = 0; step < 2; ++step) {
      module->zero_grad();
      const auto& bias = module->net->first->bias;
      model(input(group)).mean().backward({}, /*retain_graph=*/true);
      const auto before = bias.grad().clone();
      const auto loss = module->hidden.mean();
      std::vector<Tensor> sum{
          torch::autograd::grad({loss}, {bias}, {}, /*retain_graph=*/true)[0]};
      loss.backward();
      group->allreduce(sum)->wait();
      TORCH_CHECK(bias.grad().allclose(before + sum[0] / 2));
    }
  });
}

TEST_CASE("a pass of the inner module is averaged", "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    const auto expected = averaged_by_hand(net, group);
    net(input(group)).sum().backward();
    TORCH_CHECK(
        net->first->weight.grad().allclose(expected->first->weight.grad()));
  });
}

TEST_CASE("forwards inside a guard, the last pass outside", "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    const auto expected = averaged_by_hand(net, group);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      std::vector<Tensor> losses;
      {
        const NoSyncGuard no_sync(*model);
        for (int i = 0; i < 2; ++i) {
          losses.push_back(model(input(group)).sum());
        }
        losses[0].backward();
      }
      losses[1].backward();
      TORCH_CHECK(net->first->weight.grad().allclose(
          2 * expected->first->weight.grad()));
    }
  });
}

TEST_CASE("a wrapper that goes while its pass runs", "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    const auto module = std::make_shared<NormedImpl>();
    auto model = std::make_shared<DistributedDataParallelImpl<NormedImpl>>(
        module, over(group));
    const auto loss = model->forward(input(group) + torch::eye(2)).sum();
    module->net->second->weight.register_hook([&](const Tensor& grad) {
      model.reset();
      return grad;
    });
    loss.backward();
    TORCH_CHECK(model == nullptr);
    TORCH_CHECK(module->norm->bias.grad().allclose(torch::full({1}, 2.0)));
    std::vector<Tensor> mean{module->norm->running_mean.clone()};
    group->allreduce(mean)->wait();
    TORCH_CHECK(mean[0].div(2).allclose(module->norm->running_mean),
                "the buffers are not rank 0's");
  });
}

Group in_job(const Group& group) {
  detail::GroupMembers members{"world", {}};
  for (int rank = 0; rank < group->getSize(); ++rank) {
    members.ranks.push_back(rank);
  }
  return c10::make_intrusive<detail::MonitoredBackend>(
      group,
      members,
      std::chrono::seconds(60),
      std::make_shared<detail::PeerState>());
}

TEST_CASE("a reducer that one rank alone cannot make does not part the ranks",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    const auto job = in_job(group);
    auto weight = torch::ones({2}).requires_grad_();
    const auto held = std::make_shared<AllReduce>(job);
    const Reducer holder({{"w", weight}}, group, Options().exchange(held));
    try {
      const Reducer refused(
          {{"w", weight}},
          job,
          Options().exchange(
              group->getRank() == 0 ? held : std::make_shared<AllReduce>(job)));
      TORCH_CHECK(group->getRank() == 1);
    } catch (const c10::Error&) {
      TORCH_CHECK(group->getRank() == 0);
    }
    Reducer reducer({{"w", weight}}, job);
    test::backward(reducer, weight.sum() * (group->getRank() + 1));
    TORCH_CHECK(weight.grad().eq(1.5).all().item<bool>(), weight.grad());
  });
}

/// Calls a function after it has started a bucket.
class Watched : public AllReduce {
 public:
  using AllReduce::AllReduce;

  void start(const GradientBucket& bucket) override {
    AllReduce::start(bucket);
    if (on_start) {
      on_start(bucket);
    }
  }

  std::function<void(const GradientBucket&)> on_start;
};

/// Blocks threads until a thread opens it.
class Gate {
 public:
  void open() {
    std::call_once(once_, [this] { promise_.set_value(); });
  }
  void wait() {
    TORCH_CHECK(
        future_.wait_for(std::chrono::minutes(1)) == std::future_status::ready,
        "nobody has opened the gate");
  }

 private:
  std::once_flag once_;
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

std::string error_of(const std::function<void()>& pass) {
  try {
    pass();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// Two models of equal shape, each with a group and two buckets.
struct Models {
  Models(const Group& a, const Group& b) {
    for (const auto& group : {a, b}) {
      exchanges.push_back(std::make_shared<Watched>(group));
      nets.emplace_back();
      models.emplace_back(nets.back(),
                          over(group)
                              .exchange(exchanges.back())
                              .first_bucket_cap_mb(1e-6)
                              .bucket_cap_mb(1e-6));
    }
  }

  void pass(size_t index, const Tensor& x) {
    models[index](x).sum().backward();
  }

  std::vector<std::shared_ptr<Watched>> exchanges;
  std::vector<Net> nets;
  std::vector<DistributedDataParallel<NetImpl>> models;
};

/// Makes a pass of each model and returns their errors, by model. The model
/// `first` starts its first bucket, then another thread the other model's first
/// bucket. Model 0 starts its other buckets before model 1 does on every rank,
/// so last buckets meet in their own model even if first buckets crossed.
std::vector<std::string> passes_in_threads(Models& models,
                                           size_t first,
                                           const Tensor& x) {
  std::vector<std::string> errors(2);
  Gate one_began;
  Gate other_began;
  Gate model_0_started;
  for (size_t index = 0; index < 2; ++index) {
    models.exchanges[index]->on_start = [&,
                                         index](const GradientBucket& bucket) {
      TORCH_CHECK(bucket.count > 1, "buckets cannot cross");
      if (bucket.index == 0 && index == first) {
        one_began.open();
        other_began.wait();
      } else if (bucket.index == 0) {
        other_began.open();
      }
      if (bucket.index == 0 && index == 1) {
        model_0_started.wait();
      }
      if (bucket.is_last() && index == 0) {
        model_0_started.open();
      }
    };
  }
  const auto pass = [&](size_t index) {
    errors[index] = error_of([&] {
      if (index != first) {
        one_began.wait();
      }
      models.pass(index, x);
    });
    (index == first ? one_began : other_began).open();
    if (index == 0) {
      model_0_started.open();
    }
  };
  std::thread other(pass, 1 - first);
  pass(first);
  other.join();
  for (auto& exchange : models.exchanges) {
    exchange->on_start = nullptr;
  }
  return errors;
}

TEST_CASE("passes of two models that meet in a group are an error",
          "[ddp][lost]") {
  const auto errors = try_ranks(2, [&](const Group& plain) {
    const auto group = in_job(plain);
    Models models(group, group);
    for (int step = 0; step < 2; ++step) {
      expect_average(models.models[0], models.nets[0], group);
      expect_average(models.models[1], models.nets[1], group);
    }
    const size_t first = group->getRank();
    std::vector<std::string> thrown;
    for (const size_t index : {first, 1 - first}) {
      thrown.push_back(error_of([&] { models.pass(index, input(group)); }));
    }
    for (const auto& error : thrown) {
      TORCH_CHECK(error.find("another model's") != std::string::npos,
                  "Expected an error that says so, but got: ",
                  error);
    }
    TORCH_CHECK(false, thrown[0]);
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("give each thread a group of its own"));
  }
}

TEST_CASE("overlapping passes of two threads in a group are an error",
          "[ddp][lost]") {
  const auto errors = try_ranks(2, [&](const Group& plain) {
    const auto group = in_job(plain);
    Models models(group, group);
    for (int step = 0; step < 2; ++step) {
      expect_average(models.models[0], models.nets[0], group);
      expect_average(models.models[1], models.nets[1], group);
    }
    const size_t first = group->getRank();
    const auto thrown = passes_in_threads(models, first, input(group));
    TORCH_CHECK(thrown[first].find("nor after a backward pass of this rank has "
                                   "failed") != std::string::npos,
                "Expected an error that says so, but got: ",
                thrown[first]);
    TORCH_CHECK(false, thrown[1 - first]);
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("give each thread a group of its own"));
  }
}

TEST_CASE("a pass that fails in mean_over leaves the group to other threads",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& plain) {
    const auto group = in_job(plain);
    auto first = test::leaf({2});
    auto second = test::leaf({2});
    Reducer throws({{"first", first}}, group, Options());
    throws.set_functions(
        {.ranks = []() -> int { TORCH_CHECK(false, "no divisor"); }});
    std::string error;
    std::thread([&] {
      error = error_of([&] { test::backward(throws, first.sum()); });
    }).join();
    TORCH_CHECK(error.find("no divisor") != std::string::npos, error);
    Reducer other({{"second", second}}, group, Options());
    test::backward(other, second.sum() * (group->getRank() + 1));
    TORCH_CHECK(test::all_equal(second.grad(), 1.5), second.grad());
  });
}

TEST_CASE("two threads train over a group each", "[ddp][lost]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(2, [&](const Group& plain) {
    detail::BackendSpec spec;
    spec.store = store;
    spec.rank = plain->getRank();
    spec.size = plain->getSize();
    spec.timeout = std::chrono::minutes(1);
    const auto second = in_job(detail::make_gloo_backend(spec));
    Models models(in_job(plain), second);
    for (size_t i = 0; i < 2; ++i) {  // agrees on the bucket plans
      expect_average(models.models[i], models.nets[i], plain);
    }
    for (int step = 0; step < 3; ++step) {
      for (auto& net : models.nets) {
        net->zero_grad();
      }
      const auto errors =
          passes_in_threads(models, plain->getRank(), input(plain));
      TORCH_CHECK(errors[0].empty() && errors[1].empty(), errors[0], errors[1]);
      for (auto& net : models.nets) {
        const auto mean = averaged_by_hand(net, plain)->first->weight.grad();
        TORCH_CHECK(net->first->weight.grad().allclose(mean));
      }
    }
  });
}

TEST_CASE("of two models in a pass one misses a gradient", "[ddp][lost]") {
  const bool ends_first = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    Net whole;
    Net other;
    DistributedDataParallel first(whole, over(group));
    DistributedDataParallel second(other, over(group));
    std::string error;
    try {
      const auto part = [&] { return whole->first(input(group)).sum(); };
      const auto all = [&] { return second(input(group)).sum(); };
      // A backward pass visits the newest part of the graph first.
      const auto early = ends_first ? all() : part();
      const auto late = ends_first ? part() : all();
      (early + late).backward();
    } catch (const c10::Error& thrown) {
      error = thrown.what();
    }
    TORCH_CHECK(error.find("second.weight") != std::string::npos,
                "Expected an error that names second.weight, but got: ",
                error);
    expect_average(second, other, group);
  });
}

struct LateImpl : NetImpl {
  Linear late{nullptr};
};

// A head replaced for a new task, an adapter, a densified layer.
TEST_CASE("a parameter that comes after the wrap is an error with its name",
          "[ddp][lost]") {
  const int how = GENERATE(0, 1, 2, 3);
  const auto unused = GENERATE(0, 1, 2);
  const auto errors = try_ranks(2, [&](const Group& group) {
    const auto net = std::make_shared<LateImpl>();
    DistributedDataParallel model(net,
                                  over(group)
                                      .find_unused_parameters(unused == 1)
                                      .static_graph(unused == 2));
    model(input(group)).sum().backward();
    switch (how) {
      case 0:
        net->register_module("late", Linear(1, 1));
        break;
      case 1:
        net->register_parameter("late", torch::ones({1}));
        break;
      case 2:
        net->second->register_parameter("late", torch::ones({1}));
        break;
      default:
        net->second = net->replace_module("second", Linear(3, 1));
    }
    model(input(group));
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains(how < 2    ? "parameter late"
                        : how == 2 ? "parameter second.late"
                                   : "parameter second.weight") &&
                   Contains("has come since"));
  }
}

TEST_CASE("a pass of the inner module checks its parameters, too",
          "[ddp][lost]") {
  const bool is_thawed = GENERATE(false, true);
  const auto errors = try_ranks(2, [&](const Group& group) {
    Net net;
    net->second->bias.requires_grad_(!is_thawed);
    const DistributedDataParallel model(net, over(group));
    net(input(group)).sum().backward();
    auto factor = torch::ones({1});
    if (is_thawed) {
      net->second->bias.requires_grad_(true);
    } else {
      factor = net->register_parameter("late", factor);
    }
    (net(input(group)) * factor).sum().backward();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains(is_thawed ? "parameter second.bias to stay frozen"
                                  : "parameter late has come since"));
  }
}

TEST_CASE(
    "a gradient of a local pass whose parameter is frozen then is an error",
    "[ddp][lost]") {
  const bool on_one_rank = GENERATE(false, true);
  const auto errors = try_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    model(input(group)).sum().backward();
    net->zero_grad();
    if (!on_one_rank || group->getRank() == 1) {
      const NoSyncGuard no_sync(*model);
      model(input(group)).sum().backward();
    }
    net->second->bias.requires_grad_(false);
    model(input(group)).sum().backward();
  });
  CHECK_THAT(errors[1], Contains("second.bias") && Contains("NoSyncGuard"));
  CHECK(!errors[0].empty());
}

TEST_CASE("a parameter is frozen after a local gradient was dropped",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    {
      const NoSyncGuard no_sync(*model);
      model(input(group)).sum().backward();
    }
    net->zero_grad();
    net->second->bias.requires_grad_(false);
    const auto expected = averaged_by_hand(net, group);
    model(input(group)).sum().backward();
    TORCH_CHECK(net->first->bias.grad().allclose(expected->first->bias.grad()));
    TORCH_CHECK(!net->second->bias.grad().defined());
  });
}

TEST_CASE("a local gradient of one wrapper is used in a pass of another",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    DistributedDataParallel half(net->first,
                                 over(group).find_unused_parameters(true));
    const auto expected = averaged_by_hand(net, group);
    {
      const NoSyncGuard no_sync(*model);
      model(input(group)).sum().backward();
    }
    half(input(group));
    (0 * net->first->weight.sum()).backward();
    TORCH_CHECK(net->first->bias.grad().allclose(expected->first->bias.grad()));
  });
}

/// A hook of the program on a parameter.
struct OwnHook : torch::autograd::PostAccumulateGradHook {
  explicit OwnHook(std::function<void(const Tensor&)> run)
      : run(std::move(run)) {}
  void operator()(const Tensor& parameter) override { run(parameter); }
  std::function<void(const Tensor&)> run;
};

void set_hook(const Tensor& parameter,
              std::function<void(const Tensor&)> hook) {
  torch::autograd::impl::set_post_acc_grad_hooks(
      parameter, std::make_unique<OwnHook>(std::move(hook)));
}

void step_alone(const Tensor& parameter) {
  const torch::NoGradGuard no_grad;
  Tensor(parameter).sub_(parameter.grad());
}

// As in PyTorch's recipe "fuse the optimizer step into the backward pass".
TEST_CASE("a hook of the program that takes a local gradient is an error",
          "[ddp][lost]") {
  const int unused = GENERATE(0, 1, 2);
  const int how = GENERATE(0, 1, 2, 3);
  const auto errors = try_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net,
                                  over(group)
                                      .find_unused_parameters(unused == 1)
                                      .static_graph(unused == 2));
    const auto hook = [how](const Tensor& parameter) {
      if (how != 1) {
        step_alone(parameter);
      }
      if (how != 2) {
        parameter.mutable_grad().reset();
      }
    };
    if (how != 3) {
      set_hook(net->second->bias, hook);
    }
    for (int pass = 0; pass < 2; ++pass) {
      const auto loss = model(input(group)).sum();
      if (how == 3) {
        set_hook(net->second->bias, hook);
      }
      loss.backward();
    }
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("second.bias") || Contains("another rank has left"));
  }
  CHECK_THAT(errors[0] + errors[1],
             Contains(how == 3 ? "has got one since" : "is averaged after"));
}

TEST_CASE("a hook of the program may change a gradient in place",
          "[ddp][lost]") {
  run_ranks(2, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, over(group));
    int calls = 0;
    set_hook(net->second->bias, [&](const Tensor& parameter) {
      ++calls;
      parameter.mutable_grad().mul_(group->getRank());
    });
    for (int pass = 1; pass <= 3; ++pass) {
      net->zero_grad();
      model(input(group)).sum().backward();
      TORCH_CHECK(net->second->bias.grad().item<float>() == 1);  // (0 + 2) / 2
      TORCH_CHECK(calls == pass);
    }
    // A local pass is the program's own.
    const NoSyncGuard no_sync(*model);
    set_hook(net->second->bias, [](const Tensor& parameter) {
      step_alone(parameter);
      parameter.mutable_grad().reset();
    });
    model(input(group)).sum().backward();
  });
}

TEST_CASE("a layer that comes into a Sequential after the wrap is an error",
          "[ddp][lost]") {
  const auto errors = try_ranks(2, [&](const Group& group) {
    torch::nn::Sequential net(Linear(1, 1));
    DistributedDataParallel model(net, over(group));
    net->push_back(Linear(1, 1));
    model(torch::ones({1, 1}));
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("parameter 1.weight has come since"));
  }
}

using torch::nn::utils::rnn::PackedSequence;

/// A layer for packed sequences: a linear layer per step, or a recurrent one.
struct PackedNetImpl : torch::nn::Module {
  explicit PackedNetImpl(bool is_recurrent) {
    if (is_recurrent) {
      gru = register_module("gru", torch::nn::GRU(2, 3));
    } else {
      linear = register_module("linear", Linear(2, 3));
    }
  }
  PackedSequence forward(const PackedSequence& x) {
    if (gru) {
      return std::get<0>(gru->forward_with_packed_input(x));
    }
    return PackedSequence(linear(x.data()), x.batch_sizes());
  }
  torch::nn::GRU gru{nullptr};
  Linear linear{nullptr};
};
TORCH_MODULE(PackedNet);

/// Two packed sequences of 3 and 2 steps, with small integers.
PackedSequence sequences(int rank, int pass) {
  const auto padded = torch::arange(12).view({3, 2, 2}).add(rank + 4 * pass);
  return torch::nn::utils::rnn::pack_padded_sequence(
      padded.remainder(5).to(torch::kFloat), torch::tensor({3, 2}));
}

Tensor loss_of(const PackedSequence& output, int pass) {
  return output.data().to(torch::kFloat).sum() * (pass + 1);
}

TEST_CASE("two forwards of packed sequences, then their two backwards",
          "[ddp][lost]") {
  const bool is_recurrent = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    PackedNet net(is_recurrent);
    DistributedDataParallel model(net, over(group));
    for (int step = 0; step < 3; ++step) {
      PackedNet plain(is_recurrent);
      {
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < plain->parameters().size(); ++i) {
          plain->parameters()[i].copy_(net->parameters()[i]);
        }
      }
      for (int rank = 0; rank < group->getSize(); ++rank) {
        for (int pass = 0; pass < 2; ++pass) {
          loss_of(plain->forward(sequences(rank, step + pass)), pass)
              .div(group->getSize())
              .backward();
        }
      }
      net->zero_grad();
      const int rank = group->getRank();
      const auto first = model(sequences(rank, step));
      const auto second = model(sequences(rank, step + 1));
      loss_of(first, 0).backward();
      loss_of(second, 1).backward();
      for (size_t i = 0; i < plain->parameters().size(); ++i) {
        const auto& grad = net->parameters()[i].grad();
        const auto& mean = plain->parameters()[i].grad();
        TORCH_CHECK(
            grad.defined() && grad.allclose(mean, 1e-4, 1e-5), grad, mean);
      }
      torch::optim::SGD(net->parameters(), 0.01).step();
    }
  });
}

}  // namespace lost_gradients_test
}  // namespace ddp
