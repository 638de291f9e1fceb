// Changes the ranks of a module that is already wrapped.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/job/backends.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace update_process_group_test {

using Catch::Contains;
using test::FakeBackend;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using torch::nn::Linear;
using torch::nn::Sequential;
using Model = DistributedDataParallel<torch::nn::SequentialImpl>;
using Options = DistributedDataParallelOptions;
using Store = c10::intrusive_ptr<c10d::Store>;

/// Returns a group of `ranks`, in their order; null on the other ranks.
Group part_of(const Group& all,
              const std::vector<int>& ranks,
              const Store& store,
              const std::string& name = "part") {
  const auto place =
      std::find(ranks.begin(), ranks.end(), static_cast<int>(all->getRank()));
  if (place == ranks.end()) {
    return nullptr;
  }
  detail::BackendSpec spec;
  spec.store = c10::make_intrusive<c10d::PrefixStore>(name, store);
  spec.rank = static_cast<int>(place - ranks.begin());
  spec.size = static_cast<int>(ranks.size());
  spec.timeout = std::chrono::seconds(60);
  return detail::make_gloo_backend(spec);
}

Store make_store() {
  return c10::make_intrusive<c10d::HashStore>();
}

/// Returns a net with parameters for several buckets, with values that differ
/// between ranks.
Sequential net_of(int rank) {
  Sequential net(Linear(4, 8),
                 torch::nn::BatchNorm1d(8),
                 torch::nn::Functional(torch::tanh),
                 Linear(8, 2));
  net->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    const auto numbers = torch::arange(parameter.numel(), torch::kDouble);
    parameter.copy_((numbers + 1.1).sin().reshape_as(parameter) + 0.01 * rank);
  }
  return net;
}

Options small_buckets(const Group& group) {
  return Options().process_group(group).bucket_cap_mb(1e-6).first_bucket_cap_mb(
      1e-6);
}

Tensor input_of(int rank, int step) {
  return torch::arange(12, torch::kDouble).reshape({3, 4}).sin() *
         (rank + 1 + 10 * step);
}

/// Returns the gradients of each step, then the parameters and buffers after
/// the last step.
std::vector<Tensor> train(Model& model,
                          torch::optim::Optimizer& optimizer,
                          int rank,
                          int steps) {
  std::vector<Tensor> seen;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    model(input_of(rank, step)).pow(2).sum().backward();
    for (const auto& parameter : model->parameters()) {
      seen.push_back(parameter.grad().clone());
    }
    optimizer.step();
  }
  for (const auto& tensors :
       {model->parameters(), model->module()->buffers()}) {
    for (const auto& tensor : tensors) {
      seen.push_back(tensor.detach().clone());
    }
  }
  return seen;
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  TORCH_CHECK(a.size() == b.size() && !a.empty());
  for (size_t i = 0; i < a.size(); ++i) {
    TORCH_CHECK(a[i].equal(b[i]), "tensor ", i, ": ", a[i], " and ", b[i]);
  }
}

Sequential copy_of(const Sequential& net) {
  return Sequential(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone()));
}

/// Returns the options of one of six ways to train.
Options of_kind(int kind, const Group& group) {
  auto options = small_buckets(group);
  if (kind == 1) {
    options.gradient_as_bucket_view(true);
  } else if (kind == 2) {
    options.static_graph(true);
  } else if (kind == 3) {
    options.find_unused_parameters(true);
  } else if (kind == 4) {
    options.mixed_precision(MixedPrecision().reduce_dtype(torch::kFloat));
  } else if (kind == 5) {
    options.exchange(std::make_shared<AllReduce>(group));
  }
  return options;
}

TEST_CASE("after a change of group a wrapper trains as a new one",
          "[ddp][group]") {
  const int kind = GENERATE(0, 1, 2, 3, 4, 5);
  // The second group has another rank 0 and other rank numbers.
  const auto ranks = GENERATE(std::vector<int>{0, 1}, std::vector<int>{2, 1});
  const auto store = make_store();
  run_ranks(3, [&](const Group& group) {
    const int rank = group->getRank();
    const auto part = part_of(group, ranks, store);
    const auto net = net_of(rank);
    Model model(net, of_kind(kind, group));
    torch::optim::SGD steps(model->parameters(), 0.01);
    train(model, steps, rank, 3);
    if (part) {
      {  // makes the ranks' parameters differ
        const torch::NoGradGuard no_grad;
        net->parameters()[0].add_(rank);
      }
      const auto copy = copy_of(net);
      Model fresh(copy, of_kind(kind, part));
      torch::optim::SGD fresh_steps(fresh->parameters(), 0.01);
      model->update_process_group(
          part, kind == 5 ? std::make_shared<AllReduce>(part) : nullptr);
      TORCH_CHECK(model->process_group() == part);
      expect_same(train(model, steps, rank, 3),
                  train(fresh, fresh_steps, rank, 3));
    }
    group->barrier()->wait();  // keeps the part until all are done
  });
}

TEST_CASE("a group grows by a rank that wraps meanwhile", "[ddp][group]") {
  const auto store = make_store();
  run_ranks(3, [&](const Group& group) {
    const int rank = group->getRank();
    const auto part = part_of(group, {0, 1}, store);
    const auto net = net_of(rank);
    std::unique_ptr<Model> model;
    if (part) {
      model = std::make_unique<Model>(net, small_buckets(part));
      torch::optim::SGD steps((*model)->parameters(), 0.01);
      train(*model, steps, rank, 2);
      (*model)->update_process_group(group);
    } else {
      model = std::make_unique<Model>(net, small_buckets(group));
    }
    // The loss is linear in the last layer's bias. Its slopes 2 (rank + 1) have
    // the mean 4, and the batch has 3 rows.
    (*model)->zero_grad();
    ((*model)(input_of(0, 0)).sum() * 2 * (rank + 1)).backward();
    TORCH_CHECK(net->parameters().back().grad().equal(
                    torch::full({2}, 2 * 3 * 2.0, torch::kDouble)),
                net->parameters().back().grad());
    std::vector<std::vector<Tensor>> all{
        std::vector<Tensor>(3, torch::empty({2, 8}, torch::kDouble))};
    for (auto& tensor : all[0]) {
      tensor = torch::empty({2, 8}, torch::kDouble);
    }
    std::vector<Tensor> mine{net->parameters()[4].detach()};
    group->allgather(all, mine)->wait();
    TORCH_CHECK(all[0][0].equal(all[0][2]) && all[0][0].equal(all[0][1]));
  });
}

/// y = weight * x + bias; both start as one.
struct LineImpl : torch::nn::Module {
  LineImpl() {
    weight = register_parameter("weight", torch::ones({1}, torch::kDouble));
    bias = register_parameter("bias", torch::ones({1}, torch::kDouble));
  }
  Tensor forward(double x) { return weight * x + bias; }
  Tensor weight, bias;
};
TORCH_MODULE(Line);

void expect(const Tensor& tensor, double value) {
  TORCH_CHECK(tensor.defined() && tensor.item<double>() == value,
              "Expected ",
              value,
              ", but got ",
              tensor);
}

TEST_CASE("to one rank and back", "[ddp][group]") {
  const auto store = make_store();
  run_ranks(2, [&](const Group& group) {
    const int rank = group->getRank();
    const auto alone =
        part_of(group, {rank}, store, "alone" + std::to_string(rank));
    Line line;
    DistributedDataParallel model(line, Options().process_group(alone));
    for (const auto& now : {alone, group, alone, group}) {
      model->update_process_group(now);
      TORCH_CHECK((model->process_group() == group) == (now == group));
      line->zero_grad();
      model(rank + 1.0).backward();
      expect(line->weight.grad(), now == group ? 1.5 : rank + 1);
    }
  });
}

TEST_CASE("forwards and gradients go on in the next group", "[ddp][group]") {
  const auto store = make_store();
  run_ranks(3, [&](const Group& group) {
    const int rank = group->getRank();
    const auto part = part_of(group, {0, 1}, store);
    Line line;
    DistributedDataParallel model(line, Options().process_group(group));
    model(rank + 1.0).backward();
    line->zero_grad();
    if (part) {
      // Two forwards without a backward pass.
      const auto first = model(rank + 1.0);
      const auto second = model(2.0 * (rank + 1));
      {
        NoSyncGuard no_sync(*model);
        model(10.0 * (rank + 1)).backward();
      }
      model->update_process_group(part);
      first.backward();
      expect(line->weight.grad(), 1.5 + 15);
      second.backward();
      expect(line->weight.grad(), 1.5 + 15 + 3);
      // The bias is frozen in the old group and thawed in the new one.
      line->bias.requires_grad_(false);
      model->update_process_group(part);
      line->zero_grad();
      model(rank + 1.0).backward();
      expect(line->weight.grad(), 1.5);
      line->bias.requires_grad_(true);
      line->bias.mutable_grad().reset();
      model(rank + 1.0).backward();
      expect(line->bias.grad(), 1);
    }
    group->barrier()->wait();
  });
}

TEST_CASE("a gradient of this rank alone is averaged by the next group",
          "[ddp][group]") {
  const auto store = make_store();
  run_ranks(3, [&](const Group& group) {
    const int rank = group->getRank();
    const auto part = part_of(group, {1, 2}, store);
    Line line;
    DistributedDataParallel model(
        line, small_buckets(group).find_unused_parameters(true));
    {
      NoSyncGuard no_sync(*model);
      model(rank + 1.0).backward();
    }
    if (part) {
      model->update_process_group(part);
      (line->bias * 1).backward();
      expect(line->bias.grad(), 2);
      expect(line->weight.grad(), 2.5);  // not in this pass
    }
    group->barrier()->wait();
  });
}

TEST_CASE("a pass that an exception has left ends with its group",
          "[ddp][group]") {
  const auto old = c10::make_intrusive<FakeBackend>(2);
  const auto next = c10::make_intrusive<FakeBackend>(3);
  Line line;
  DistributedDataParallel model(line, small_buckets(old));
  model(1.0).backward();  // buckets now start as they fill
  auto other = line->weight * 1;
  other.register_hook(
      [](const Tensor&) -> Tensor { TORCH_CHECK(false, "out of memory"); });
  auto output = line->bias + other;
  CHECK_THROWS_WITH(output.backward(), Contains("out of memory"));
  old->take_calls();
  model->update_process_group(next);
  line->zero_grad();
  model(1.0).backward();
  CHECK(old->take_calls().empty());
  CHECK(line->weight.grad().item<double>() == Approx(1.0 / 3));
}

TEST_CASE("every rank of the new group learns why it is refused",
          "[ddp][group][errors]") {
  const auto [kind, message] = GENERATE(table<int, std::string>({
      {0,
       "on rank 1: Expected update_process_group between backward passes, but "
       "got it while one is reduced; call it when backward() has returned"},
      {1,
       "on rank 1: Expected update_process_group outside of a Join, but got it "
       "in one; finish that first"},
      {2,
       "on rank 1: Expected an exchange over the new group, because the model "
       "was wrapped with one of its own, but got none; make one like that over "
       "the new group"},
      {3,
       "on rank 1: Expected an exchange over the new group, but got the one "
       "that the model has, which is of the group before; make another one"},
      {4, "on rank 0: nothing; on rank 1: parameter extra of "},
  }));
  const auto store = make_store();
  const auto errors = try_ranks(2, [&, kind = kind](const Group& group) {
    const bool is_odd = group->getRank() == 1;
    const auto alone = c10::make_intrusive<FakeBackend>(2);
    Line line;
    auto options = small_buckets(alone);
    const auto exchange = std::make_shared<AllReduce>(alone);
    if (is_odd && (kind == 2 || kind == 3)) {
      options.exchange(exchange);
    }
    if (is_odd && kind == 4) {
      line->register_parameter("extra", torch::ones({2}));
    }
    DistributedDataParallel model(line, options);
    const auto update = [&] {
      model->update_process_group(group,
                                  is_odd && kind == 3 ? exchange : nullptr);
    };
    if (is_odd && kind == 0) {
      auto output = model(1.0);
      line->weight.register_hook([&](const Tensor&) { update(); });
      output.backward();
    } else if (is_odd && kind == 1) {
      Join join({*model});
      update();
    } else {
      update();
    }
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains(message));
  }
}

TEST_CASE("after a refusal the model keeps its group", "[ddp][group][errors]") {
  const auto store = make_store();
  run_ranks(2, [&](const Group& group) {
    const int rank = group->getRank();
    const auto other = part_of(group, {1, 0}, store);
    Line line;
    const auto own = std::make_shared<AllReduce>(group);
    DistributedDataParallel model(line,
                                  Options().process_group(group).exchange(own));
    bool is_refused = false;
    try {
      model->update_process_group(other, rank == 0 ? own : nullptr);
    } catch (const c10::Error&) {
      is_refused = true;
    }
    TORCH_CHECK(is_refused && model->process_group() == group);
    model(rank + 1.0).backward();
    expect(line->weight.grad(), 1.5);
    group->barrier()->wait();
  });
}

TEST_CASE("a wrapper alone keeps its state if an exchange does not fit",
          "[ddp][group][errors]") {
  const auto alone = c10::make_intrusive<FakeBackend>(1);
  const auto held = std::make_shared<AllReduce>(alone);
  auto weight = torch::ones({2}).requires_grad_();
  const Reducer holder({{"weight", weight}}, alone, Options().exchange(held));
  Line line;
  DistributedDataParallel model(line);
  for (int attempt = 0; attempt < 2; ++attempt) {
    CHECK_THROWS_WITH(model->update_process_group(alone, held),
                      Contains("another model, Reducer or exchange holds"));
  }
}

TEST_CASE("the state of an exchange goes into another group", "[ddp][group]") {
  const bool keeps = GENERATE(false, true);
  const auto store = make_store();
  run_ranks(2, [&](const Group& group) {
    const int rank = group->getRank();
    const auto other = part_of(group, {0, 1}, store);
    Linear plain(torch::nn::LinearOptions(6, 6).bias(false));
    Linear moved(torch::nn::LinearOptions(6, 6).bias(false));
    const auto options = PowerSGDOptions().start_after(0);
    const auto own = std::make_shared<PowerSGD>(group, options);
    DistributedDataParallel one(
        plain,
        Options().process_group(group).exchange(
            std::make_shared<PowerSGD>(group, options)));
    DistributedDataParallel model(moved,
                                  Options().process_group(group).exchange(own));
    const auto pass = [&](auto& wrapped, int step) {
      wrapped->zero_grad();
      const auto x = torch::arange(48).reshape({8, 6}) * (rank + 2 + step);
      wrapped(x.sin()).pow(2).sum().backward();
    };
    {
      const torch::NoGradGuard no_grad;
      moved->weight.copy_(plain->weight);
    }
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        const auto next = std::make_shared<PowerSGD>(other, options);
        if (keeps) {
          next->load_state_dict(own->state_dict());
        }
        model->update_process_group(other, next);
      }
      pass(one, step);
      pass(model, step);
      TORCH_CHECK(plain->weight.grad().equal(moved->weight.grad()) ==
                      (keeps || step < 2),
                  "step ",
                  step,
                  keeps);
    }
    group->barrier()->wait();
  });
}

}  // namespace update_process_group_test
}  // namespace ddp
