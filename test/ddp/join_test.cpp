#include "ddp/join.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/amp/grad_scaler.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/nn/sync_batch_norm.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace join_test {

using Catch::Contains;
using test::FakeBackend;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

/// a * x + b, and a buffer that counts the forwards.
struct LineImpl : torch::nn::Module {
  LineImpl() {
    a = register_parameter("a", torch::ones({1}, torch::kDouble));
    b = register_parameter("b", torch::ones({1}, torch::kDouble));
    seen = register_buffer("seen", torch::zeros({1}, torch::kDouble));
  }
  Tensor forward(double x) {
    seen += x;
    return a * x + b * 2;
  }
  Tensor a, b, seen;
};
TORCH_MODULE(Line);

double value(const Tensor& tensor) {
  return tensor.item<double>();
}

void expect(const Tensor& tensor, double expected, const std::string& what) {
  TORCH_CHECK(std::abs(value(tensor) - expected) < 1e-12,
              what,
              ": expected ",
              expected,
              ", but got ",
              tensor);
}

/// Input of `rank` in `step`. Rank r has `counts[r]` inputs.
double input_of(int rank, int step) {
  return 1 + rank + 4 * step;
}

struct Result {
  double a = 1, b = 1;
  int last = 0;  // highest rank of the last step
};

/// Returns the line that SGD with this rate produces, step by step.
Result simulate(const std::vector<int>& counts, bool by_all, double rate) {
  Result result;
  const auto size = static_cast<int>(counts.size());
  const int steps = *std::max_element(counts.begin(), counts.end());
  result.last = size - 1;
  for (int step = 0; step < steps; ++step) {
    double slope = 0;
    int live = 0;
    for (int rank = 0; rank < size; ++rank) {
      if (step < counts[rank]) {
        slope += input_of(rank, step);
        ++live;
        result.last = rank;
      }
    }
    const double divisor = by_all ? size : live;
    result.a -= rate * slope / divisor;
    result.b -= rate * 2 * live / divisor;
  }
  return result;
}

std::vector<std::vector<int>> all_counts() {
  return {{3, 3}, {1, 4}, {4, 1}, {0, 2}, {2, 0, 5}, {0, 0}, {3, 1, 0, 2}};
}

TEST_CASE("ranks that joined have left out no step", "[join]") {
  run_ranks(2, [](const Group& group) {
    Line net;
    DistributedDataParallel model(net, Options().process_group(group));
    torch::optim::SGD optimizer(model->parameters(),
                                torch::optim::SGDOptions(0.125));
    const auto train = [&](int inputs) {
      Join join({*model});
      for (int i = 0; i < inputs; ++i) {
        model->forward(1).sum().backward();
      }
      optimizer.step();
      optimizer.zero_grad();
      join.finish();
    };
    train(group->getRank() == 0 ? 2 : 0);  // two passes for one step
    train(1);
  });
}

TEST_CASE("ranks train on different numbers of inputs", "[join]") {
  const auto counts = GENERATE(from_range(all_counts()));
  const bool by_all = GENERATE(true, false);
  const bool finds_unused = GENERATE(false, true);
  const bool follows = GENERATE(false, true);
  const auto size = static_cast<int>(counts.size());
  run_ranks(size, [&](const Group& group) {
    const int rank = group->getRank();
    Line net;
    DistributedDataParallel model(net,
                                  Options()
                                      .process_group(group)
                                      .bucket_cap_mb(1e-6)
                                      .find_unused_parameters(finds_unused));
    torch::optim::SGD optimizer(model->parameters(),
                                torch::optim::SGDOptions(0.125).momentum(0.0));
    // Two epochs: an epoch after a joined one behaves as any other.
    double start_a = 1;
    double start_b = 1;
    for (int epoch = 0; epoch < 2; ++epoch) {
      Join join({*model}, JoinOptions().divide_by_initial_world_size(by_all));
      for (int step = 0; step < counts[rank]; ++step) {
        optimizer.zero_grad();
        model->forward(input_of(rank, step)).sum().backward();
        optimizer.step();
      }
      std::function<void()> step;
      if (follows) {
        step = [&] { optimizer.step(); };
      }
      join.finish(step);
      const auto expected = simulate(counts, by_all, 0.125);
      start_a += expected.a - 1;
      start_b += expected.b - 1;
      expect(net->a, start_a, "a");
      expect(net->b, start_b, "b");
      TORCH_CHECK(model->forward(0).defined());
    }
    // Every rank has inputs again.
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model->forward(rank).sum().backward();
      expect(net->a.grad(), (size - 1) / 2.0, "the gradient");
      optimizer.step();
    }
  });
}

TEST_CASE("buffers come from the last rank with inputs", "[join]") {
  const auto counts = GENERATE(from_range(all_counts()));
  run_ranks(static_cast<int>(counts.size()), [&](const Group& group) {
    const int rank = group->getRank();
    Line net;
    DistributedDataParallel model(net, Options().process_group(group));
    Join join({*model});
    for (int step = 0; step < counts[rank]; ++step) {
      model->forward(input_of(rank, step)).sum().backward();
    }
    join.finish();
    double seen = 0;
    for (int step = 0; step < 5; ++step) {
      for (int source = group->getSize() - 1; source >= 0; --source) {
        if (step < counts[source]) {
          seen += input_of(source, step);
          break;
        }
      }
    }
    expect(net->seen, seen, "the buffer");
  });
}

TEST_CASE("forwards and local passes cost nothing in a join", "[join]") {
  run_ranks(3, [](const Group& group) {
    const int rank = group->getRank();
    Line net;
    DistributedDataParallel model(net, Options().process_group(group));
    Join join({*model});
    for (int step = 0; step < rank; ++step) {
      {  // any number of passes
        const NoSyncGuard no_sync(*model);
        for (int i = 0; i <= step; ++i) {
          model->forward(1).sum().backward();
        }
      }
      model->forward(2);  // without a backward pass
      const torch::NoGradGuard no_grad;
      model->forward(3);
    }
    if (rank == 2) {
      net->zero_grad();
      model->forward(6).sum().backward();
      expect(net->a.grad(), 2, "a.grad");
    }
    join.finish();
  });
}

TEST_CASE("accumulated gradients are averaged with zeros", "[join]") {
  run_ranks(2, [](const Group& group) {
    Line net;
    DistributedDataParallel model(net, Options().process_group(group));
    Join join({*model});
    if (group->getRank() == 1) {
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        {
          const NoSyncGuard no_sync(*model);
          model->forward(1).sum().backward();
        }
        model->forward(step).sum().backward();
        expect(net->a.grad(), (1.0 + step) / 2, "a.grad");
        const torch::NoGradGuard no_grad;
        net->a -= net->a.grad();
      }
    }
    join.finish();
    expect(net->a, 1 - (1 + 2 + 3) / 2.0, "a");
  });
}

TEST_CASE("a join may end on the first rank that has no inputs", "[join]") {
  const bool has_sync_norm = GENERATE(false, true);
  const int size = 3;
  std::vector<int> steps(size);
  const auto errors = try_ranks(size, [&](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(2, 4));
    if (has_sync_norm) {
      net->push_back(SyncBatchNorm(4, group));
    }
    DistributedDataParallel model(net, Options().process_group(group));
    Join join({*model}, JoinOptions().throw_on_early_termination(true));
    for (int step = 0; step < (group->getRank() == 1 ? 2 : 5); ++step) {
      model->forward(torch::ones({3, 2}) * step).sum().backward();
      ++steps[group->getRank()];
    }
    join.finish();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("rank 1 had none left while ranks 0, 2 had"));
  }
  CHECK(steps == std::vector<int>{2, 2, 2});
}

TEST_CASE("even inputs end no join early", "[join]") {
  run_ranks(2, [](const Group& group) {
    Line net;
    DistributedDataParallel model(net, Options().process_group(group));
    for (int epoch = 0; epoch < 2; ++epoch) {
      Join join({*model}, JoinOptions().throw_on_early_termination(true));
      for (int step = 0; step < 3; ++step) {
        model->forward(step).sum().backward();
      }
      join.finish();
    }
  });
}

/// Counts its act() calls over all ranks.
class Counter : public Joinable {
 public:
  Counter(Group group, std::string name)
      : group_(std::move(group)), name_(std::move(name)) {}

  void act() {
    if (join() != nullptr) {
      last_turn = join()->announce(*this);
    }
    sum(1);
    if (join() != nullptr) {
      join()->done(*this);
    }
  }

  std::string join_name() const override { return name_; }
  Group join_group() const override { return group_; }
  c10::Device join_device() const override { return c10::kCPU; }
  void take_part(const JoinTurn& turn) override {
    last_turn = turn;
    sum(0);
  }
  void end_join(int source) override { last_source = source; }

  int64_t total = 0;
  int last_source = -1;
  JoinTurn last_turn;

 private:
  void sum(int64_t mine) {
    std::vector<Tensor> all{torch::full({1}, mine, torch::kLong)};
    group_->allreduce(all)->wait();
    total += all[0].item<int64_t>();
  }

  Group group_;
  std::string name_;
};

TEST_CASE("a joinable that refuses is heard", "[join][errors]") {
  struct Refusing : Counter {
    using Counter::Counter;
    std::string refuses_join() const override {
      return "needs sums divided by all ranks";
    }
  };
  const auto errors = try_ranks(2, [](const Group& group) {
    Refusing refusing(group, "a sum");
    const Join join({refusing});
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("a sum that needs sums divided by all ranks"));
  }
}

TEST_CASE("a wrapper alone joins beside others", "[join]") {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(1, 1);
    DistributedDataParallel model(
        net,
        DistributedDataParallelOptions().process_group(
            c10::make_intrusive<test::FakeBackend>(1)));
    Counter counter(group, "a counter");
    Join join({*model, counter});
    for (int step = 0; step <= group->getRank(); ++step) {
      model->forward(torch::ones({1, 1})).backward();
      counter.act();
    }
    join.finish();
    TORCH_CHECK(counter.total == 3, counter.total);
  });
}

TEST_CASE("several joinables take turns as they like", "[join]") {
  run_ranks(3, [](const Group& group) {
    const int rank = group->getRank();
    Line net;
    DistributedDataParallel model(net, Options().process_group(group));
    Counter counter(group, "a counter");
    Join join({counter, *model});
    for (int step = 0; step < 2 * rank; ++step) {
      model->forward(1).sum().backward();
      counter.act();
      if (step % 2 == 1) {
        counter.act();
      }
    }
    join.finish();
    // Rank 1 calls act() 3 times in its two steps, rank 2 6 times in its four.
    TORCH_CHECK(counter.total == 3 + 6, counter.total);
    TORCH_CHECK(counter.last_source == 2, counter.last_source);
    TORCH_CHECK(counter.last_turn.live == std::vector<int>{2});
    TORCH_CHECK(counter.last_turn.divisor == 3);
  });
}

TEST_CASE("all ranks learn that their joins differ", "[join][errors]") {
  const int kind = GENERATE(0, 1, 2, 3);
  const auto errors = try_ranks(3, [&](const Group& group) {
    const bool odd = group->getRank() == 1;
    Counter first(group, "one");
    const auto other = c10::make_intrusive<FakeBackend>(3);
    Counter second(odd && kind == 0 ? Group(other) : group, "two");
    JoinOptions options;
    options.divide_by_initial_world_size(!(odd && kind == 1));
    std::unique_ptr<Join> before;
    if (kind == 2) {
      before = std::make_unique<Join>(
          std::vector<std::reference_wrapper<Joinable>>{first});
    }
    if (odd && kind == 3) {
      Join join({second, first}, options);
    } else {
      Join join({first, second}, options);
    }
  });
  for (const auto& error : errors) {
    const bool has_refused = kind == 0 || kind == 2;
    CHECK_THAT(
        error,
        Contains(has_refused ? "Expected models that can join, but got "
                             : "Expected the same models and options in a Join "
                               "on all ranks, but got "));
    CHECK_THAT(
        error,
        Contains(kind == 0   ? "two with another group than one"
                 : kind == 1 ? "on rank 1: one and two divided by those with "
                               "inputs;"
                 : kind == 2 ? "on ranks 0-2: Expected models that can join, "
                               "but got one that is in another Join"
                             : "on rank 1: two and one divided by all"));
  }
}

TEST_CASE("all ranks learn that their next steps differ", "[join][errors]") {
  const auto errors = try_ranks(3, [](const Group& group) {
    Counter first(group, "one");
    Counter second(group, "two");
    Join join({first, second});
    if (group->getRank() == 0) {
      first.act();
    } else if (group->getRank() == 2) {
      second.act();
    }
    join.finish();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("to do the same next, but got on rank 0: one 1; on "
                        "rank 2: two 2;"));
  }
}

TEST_CASE("a module that cannot go without inputs is refused",
          "[join][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(2, 4), SyncBatchNorm(4, group));
    DistributedDataParallel model(net, Options().process_group(group));
    Join join({*model});
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("has the SyncBatchNorm 1"));
  }
}

TEST_CASE("a batch norm in evaluation mode needs no inputs", "[join]") {
  run_ranks(2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(2, 4), SyncBatchNorm(4, group));
    net->eval();
    DistributedDataParallel model(net, Options().process_group(group));
    Join join({*model});
    for (int step = 0; step < 3 * group->getRank(); ++step) {
      model->forward(torch::ones({3, 2})).sum().backward();
    }
    join.finish();
  });
}

TEST_CASE("a batch norm that trains again in a join is told of it",
          "[join][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(2, 4), SyncBatchNorm(4, group));
    net->eval();
    DistributedDataParallel model(net, Options().process_group(group));
    Join join({*model});
    net->train();
    model->forward(torch::ones({3, 2})).sum().backward();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("a SyncBatchNorm in evaluation mode in a Join"));
  }
}

TEST_CASE("two models in one backward pass are refused in a join",
          "[join][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    Line one;
    Line two;
    DistributedDataParallel first(one, Options().process_group(group));
    DistributedDataParallel second(two, Options().process_group(group));
    Join join({*first, *second});
    const auto sum = first->forward(1).sum() + second->forward(1).sum();
    sum.backward();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("call backward() for each model alone"));
  }
}

TEST_CASE("an enabled scaler is refused in a join",
          "[join][grad_scaler][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    Line net;
    DistributedDataParallel model(net, Options().process_group(group));
    GradScaler scaler;
    const auto loss = [&] { return model->forward(1).sum(); };
    {
      Join even({*model}, JoinOptions().throw_on_early_termination(true));
      scaler.scale(loss()).backward();
      even.finish();
    }
    Join join({*model});
    GradScaler(GradScalerOptions().enabled(false)).scale(loss()).backward();
    scaler.scale(loss());
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("Expected no enabled GradScaler in a Join"));
  }
}

TEST_CASE("the function of a join runs after each turn", "[join]") {
  run_ranks(2, [&](const Group& group) {
    Line net;
    DistributedDataParallel model(net, Options().process_group(group));
    int turns = 0;
    const auto end_turn = [&] { ++turns; };
    Join join({*model});
    for (int turn = 0; turn < 4 * group->getRank(); ++turn) {
      model->forward(1).sum().backward();
      end_turn();
    }
    join.finish(end_turn);
    TORCH_CHECK(turns == 4);
  });
}

TEST_CASE("a join that is left lets go of its models", "[join]") {
  run_ranks(2, [](const Group& group) {
    Line net;
    DistributedDataParallel model(net, Options().process_group(group));
    try {
      Join join({*model});
      throw std::runtime_error("the loop");
    } catch (const std::runtime_error&) {
    }
    model->forward(1).sum().backward();
    expect(net->a.grad(), 1, "a.grad");
    Join off({*model}, JoinOptions().enable(false));
    model->forward(1).sum().backward();
    off.finish();
    Join again({*model});
    again.finish();
    again.finish();
  });
}

TEST_CASE("a world of one joins at once", "[join]") {
  Line net;
  DistributedDataParallel model(net);
  Join join({*model});
  model->forward(1).sum().backward();
  join.finish();
  CHECK_THROWS_WITH(Join({}), Contains("at least one model"));
}

TEST_CASE("a shadow pass sends zeros, not its old gradients", "[join]") {
  run_ranks(2, [](const Group& group) {
    const auto weight = torch::ones({3}, torch::kDouble).requires_grad_();
    Reducer reducer({{"w", weight}}, group);
    for (int step = 0; step < 3; ++step) {
      if (group->getRank() == 0) {
        weight.mutable_grad() = torch::full_like(weight, 100);
        reducer.shadow_pass(2);
      } else {
        weight.mutable_grad().reset();
        (weight * 4).sum().backward();
      }
      TORCH_CHECK(weight.grad().eq(2).all().item<bool>(), weight.grad());
    }
  });
}

TEST_CASE("a missing gradient also ends the wait of joined ranks",
          "[join][errors]") {
  const auto errors = try_ranks(3, [](const Group& group) {
    const auto used = torch::ones({3}).requires_grad_();
    const auto other = torch::ones({3}).requires_grad_();
    Reducer reducer({{"used", used}, {"other", other}}, group);
    if (group->getRank() == 0) {
      reducer.shadow_pass(3);
    } else {
      const auto sum = used.sum();
      (group->getRank() == 1 ? sum : sum + other.sum()).backward();
    }
  });
  CHECK_THAT(errors[1], Contains("these got none on rank 1: other;"));
  for (const int rank : {0, 2}) {
    CHECK_THAT(errors[rank], Contains("another rank has left"));
  }
}

}  // namespace join_test
}  // namespace ddp
