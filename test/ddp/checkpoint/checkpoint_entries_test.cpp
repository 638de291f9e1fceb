// Checkpoint entries besides models, optimizers, samplers and scalers:
// averagers, exchanges, and the program's own objects and variables.
#include <memory>
#include <optional>
#include <string>

#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/checkpoint.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/optim/model_averager.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace checkpoint_entries_test {

using Catch::Contains;
using test::Group;
using test::run_ranks;
using test::TemporaryFolder;
using test::try_ranks;
using torch::Tensor;
using torch::optim::SGD;

enum class Kind { averager, power_sgd };

std::shared_ptr<Exchange> make_exchange(Kind kind, const Group& group) {
  switch (kind) {
    case Kind::averager:
      return std::make_shared<AllReduce>(group);
    case Kind::power_sgd:
      return std::make_shared<PowerSGD>(
          group,
          PowerSGDOptions().rank(1).min_compression_rate(1).start_after(5));
  }
  return nullptr;
}

/// A training that averages gradients, and with an averager parameters from
/// step 5 on.
struct Training {
  Training(Kind kind, const Group& group)
      : rank(group->getRank()),
        exchange(make_exchange(kind, group)),
        model(net,
              DistributedDataParallelOptions().process_group(group).exchange(
                  exchange)),
        checkpoint(net) {
    averager = std::make_shared<ModelAverager>(
        ModelAveragerOptions(3, group).warmup_steps(5));
    optimizer = std::make_unique<SGD>(model->parameters(), 0.05);
    averages = kind == Kind::averager;
    checkpoint.process_group(group).add("optimizer", *optimizer);
    checkpoint.add("exchange", exchange);
    if (averages) {
      checkpoint.add("averager", *averager);
    }
  }

  void run(int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      optimizer->zero_grad();
      const auto x = torch::arange(8 * 6, torch::kFloat).view({8, 6});
      const auto batch = (x * (rank + 2.0) + step * 1.7).sin();
      std::optional<NoSyncGuard> alone;
      if (averages && step >= 5) {
        alone.emplace(*model);
      }
      model->forward(batch).pow(2).sum().backward();
      optimizer->step();
      if (averages) {
        averager->average_parameters(model->parameters());
      }
    }
  }

  int rank;
  torch::nn::Linear net{6, 5};
  std::shared_ptr<Exchange> exchange;
  DistributedDataParallel<torch::nn::LinearImpl> model;
  std::shared_ptr<ModelAverager> averager;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  bool averages = false;
  Checkpoint checkpoint;
};

TEST_CASE("averagers and exchanges resume bit for bit",
          "[checkpoint][averager][exchange]") {
  const auto kind = GENERATE(Kind::averager, Kind::power_sgd);
  const bool is_early = GENERATE(true, false);  // in the first 5 passes
  // After these steps all ranks have the same parameters.
  const int64_t saved_after = is_early ? 4 : 6;
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  run_ranks(2, [&](const Group& group) {
    Training whole(kind, group);
    whole.run(0, saved_after);
    whole.checkpoint.save(path);
    whole.run(saved_after, 14);

    Training resumed(kind, group);
    resumed.run(0, 1);
    resumed.checkpoint.load(path);
    TORCH_CHECK(!resumed.averages || resumed.averager->steps() == saved_after);
    resumed.run(saved_after, 14);
    TORCH_CHECK(torch::equal(resumed.net->weight, whole.net->weight),
                resumed.net->weight,
                whole.net->weight);
  });
}

TEST_CASE("an averager's steps are in a checkpoint", "[checkpoint][averager]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  ModelAverager averager(ModelAveragerOptions(2));
  for (int step = 0; step < 9; ++step) {
    averager.average_parameters({});
  }
  Checkpoint().add("averager", averager).save(path);
  const auto file = detail::read_torch_file(path).value.toGenericDict();
  CHECK(file.at("averager").toGenericDict().at("step").toInt() == 9);
  ModelAverager resumed(ModelAveragerOptions(2));
  Checkpoint().add("averager", resumed).load(path);
  CHECK(resumed.steps() == 9);
  const auto negative = averager.state_dict();
  negative.toGenericDict().insert_or_assign("step", -1);
  CHECK_THROWS_WITH(averager.load_state_dict(negative), Contains("got -1"));
  CHECK_THROWS_WITH(averager.load_state_dict(detail::new_dict()),
                    Contains("step"));
}

struct Variables {
  explicit Variables(const Group& group = nullptr) {
    checkpoint.process_group(group)
        .add("flag", flag)
        .add("count", count)
        .add("best", best)
        .add("note", note)
        .add("table", table)
        .add("nothing", nothing)
        .add("mine", mine, CheckpointScope::per_rank)
        .add("my note", my_note, CheckpointScope::per_rank)
        .add("my table", my_table, CheckpointScope::per_rank);
  }

  bool flag = false;
  int64_t count = 0;
  double best = 0;
  std::string note;
  Tensor table = torch::zeros({2, 2});
  Tensor nothing;
  int64_t mine = -1;
  std::string my_note;
  Tensor my_table;
  Checkpoint checkpoint;
};

TEST_CASE("variables of the program are in a checkpoint", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  run_ranks(3, [&](const Group& group) {
    const int rank = group->getRank();
    Variables saved(group);
    saved.flag = rank == 0;
    saved.count = 7 + rank;
    saved.best = 0.5 + rank;
    saved.note = "of rank " + std::to_string(rank);
    saved.table.fill_(rank + 1);
    saved.mine = 10 + rank;
    saved.my_note = std::string(1000 * rank, 'x');
    saved.my_table = torch::full({rank + 1}, rank, torch::kLong);
    saved.checkpoint.save(path);

    Variables loaded(group);
    const auto memory = loaded.table.data_ptr();
    loaded.checkpoint.load(path);
    TORCH_CHECK(loaded.flag && loaded.count == 7 && loaded.best == 0.5);
    TORCH_CHECK(loaded.note == "of rank 0", loaded.note);
    TORCH_CHECK(loaded.table.eq(1).all().item<bool>());
    TORCH_CHECK(loaded.table.data_ptr() == memory);
    TORCH_CHECK(!loaded.nothing.defined());
    TORCH_CHECK(loaded.mine == 10 + rank, loaded.mine);
    TORCH_CHECK(loaded.my_note == saved.my_note);
    TORCH_CHECK(loaded.my_table.equal(saved.my_table), loaded.my_table);
  });
  const auto file = detail::read_torch_file(path).value.toGenericDict();
  CHECK(file.at("best").toDouble() == 0.5);
  CHECK(file.at("mine").toListRef()[2].toInt() == 12);

  const auto refuses = [&](Checkpoint& checkpoint, const std::string& reason) {
    CHECK_THROWS_WITH(checkpoint.load(path), Contains(reason));
  };
  double wrong = 3;
  Checkpoint number;
  number.add("note", wrong);
  refuses(number, R"(in "note": expected a number as its checkpoint["note"])");
  CHECK(wrong == 3);
  auto table = torch::zeros({3});
  Checkpoint shape;
  shape.add("table", table);
  refuses(shape, "expected Float[3] as its checkpoint[\"table\"]");
  int64_t mine = 0;
  Checkpoint ranks;
  ranks.add("mine", mine, CheckpointScope::per_rank);
  refuses(ranks, "values of 1 ranks as its checkpoint[\"mine\"]");
}

/// An object of the program: a sum of numbers, on some ranks broken.
class Sum : public Stateful {
 public:
  explicit Sum(CheckpointScope scope = CheckpointScope::common)
      : scope_(scope) {}

  c10::IValue state_dict() const override {
    TORCH_CHECK(!is_broken, "the sum is broken");
    auto state = detail::new_dict().toGenericDict();
    state.insert("value", value);
    return state;
  }
  void check_state_dict(const c10::IValue& state) const override {
    TORCH_CHECK(!is_broken && state.isGenericDict(), "the sum is broken");
  }
  void load_state_dict(const c10::IValue& state) override {
    value = state.toGenericDict().at("value").toDouble();
  }
  CheckpointScope checkpoint_scope() const override { return scope_; }

  double value = 0;
  bool is_broken = false;

 private:
  CheckpointScope scope_;
};

TEST_CASE("objects of the program are in a checkpoint", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  const auto add = [](Checkpoint& checkpoint, Sum& common, Sum& mine) {
    const auto shared = std::make_shared<Sum>(CheckpointScope::per_rank_modulo);
    checkpoint.add("common", common).add("mine", mine).add("shared", shared);
    return shared;
  };
  run_ranks(2, [&](const Group& group) {
    Sum common;
    Sum mine(CheckpointScope::per_rank);
    Checkpoint checkpoint;
    const auto shared = add(checkpoint.process_group(group), common, mine);
    common.value = 10 + group->getRank();
    mine.value = 20 + group->getRank();
    shared->value = 30 + group->getRank();
    checkpoint.save(path);
    common.value = mine.value = shared->value = 0;
    checkpoint.load(path);
    TORCH_CHECK(common.value == 10, common.value);
    TORCH_CHECK(mine.value == 20 + group->getRank(), mine.value);
    TORCH_CHECK(shared->value == 30 + group->getRank(), shared->value);
  });
  run_ranks(3, [&](const Group& group) {
    Sum common;
    const auto shared = std::make_shared<Sum>(CheckpointScope::per_rank_modulo);
    Checkpoint()
        .process_group(group)
        .add("common", common)
        .add("shared", shared)
        .load(path);
    TORCH_CHECK(common.value == 10, common.value);
    TORCH_CHECK(shared->value == 30 + group->getRank() % 2, shared->value);
  });
  for (const auto& error : try_ranks(3, [&](const Group& group) {
         Sum common;
         Sum mine(CheckpointScope::per_rank);
         Checkpoint checkpoint;
         add(checkpoint.process_group(group), common, mine);
         checkpoint.load(path);
       })) {
    CHECK_THAT(error,
               Contains("the values of 3 ranks as its checkpoint[\"mine\"], "
                        "but got those of 2"));
  }
  CHECK_THROWS_WITH(Checkpoint().add("exchange", std::shared_ptr<Exchange>()),
                    Contains("an object with a state as \"exchange\""));
}

TEST_CASE("an entry that fails on one rank fails on all", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  const auto names_rank_1 = [](const std::vector<std::string>& errors) {
    for (const auto& error : errors) {
      CHECK_THAT(error,
                 Contains("rank 1: Cannot ") &&
                     Contains(": in \"sum\": the sum is broken"));
    }
  };
  // The entries after the broken one communicate.
  const auto act = [&](const Group& group, const auto& work) {
    torch::nn::Linear net(3, 2);
    ZeroRedundancyOptimizer optimizer(
        net->parameters(),
        [](const auto& groups) { return std::make_unique<SGD>(groups, 0.1); },
        group);
    DistributedSampler sampler(
        10, DistributedSamplerOptions().num_replicas(2).rank(group->getRank()));
    Sum before;
    Sum sum;
    Checkpoint checkpoint;
    checkpoint.process_group(group)
        .add("before", before)
        .add("sum", sum)
        .add("optimizer", optimizer)
        .add("sampler", sampler);
    work(checkpoint, before, sum);
  };
  names_rank_1(try_ranks(2, [&](const Group& group) {
    act(group, [&](Checkpoint& checkpoint, Sum& /*before*/, Sum& sum) {
      sum.is_broken = group->getRank() == 1;
      checkpoint.save(path);
    });
  }));
  CHECK(folder.size() == 0);
  names_rank_1(try_ranks(2, [&](const Group& group) {
    act(group, [&](Checkpoint& checkpoint, Sum& before, Sum& sum) {
      before.value = 7;
      checkpoint.epoch(3).save(path);
      before.value = 8;
      sum.is_broken = group->getRank() == 1;
      checkpoint.epoch(4);
      try {
        checkpoint.load(path);
      } catch (...) {
        TORCH_CHECK(before.value == 8 && checkpoint.epoch() == 4);
        throw;
      }
    });
  }));
}

TEST_CASE("a scheduler goes on at its epoch", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  // Parameter groups with different rates.
  const auto make = [](const Tensor& weight, const Tensor& bias) {
    using Group = torch::optim::OptimizerParamGroup;
    return SGD({Group({weight}),
                Group({bias}, std::make_unique<torch::optim::SGDOptions>(0.5))},
               1.0);
  };
  const auto weight = torch::zeros({3}).requires_grad_();
  const auto bias = torch::zeros({1}).requires_grad_();
  auto whole = make(weight, bias);
  torch::optim::StepLR whole_schedule(whole, 3, 0.1);
  Checkpoint saved;
  saved.add("optimizer", whole);
  auto resumed = make(weight, bias);
  torch::optim::StepLR schedule(resumed, 3, 0.1);
  for (int64_t epoch = 0; epoch < 9; ++epoch) {
    if (epoch == 5) {
      saved.epoch(epoch).save(path);
      Checkpoint checkpoint;
      checkpoint.add("optimizer", resumed).load(path);
      std::vector<double> rates;
      for (auto& group : resumed.param_groups()) {
        rates.push_back(group.options().get_lr());
      }
      for (int64_t i = 0; i < checkpoint.epoch(); ++i) {
        schedule.step();
      }
      for (size_t g = 0; g < rates.size(); ++g) {
        resumed.param_groups()[g].options().set_lr(rates[g]);
      }
    }
    whole_schedule.step();
    if (epoch >= 5) {
      schedule.step();
      for (size_t g = 0; g < 2; ++g) {
        CHECK(resumed.param_groups()[g].options().get_lr() ==
              whole.param_groups()[g].options().get_lr());
      }
    }
  }
  CHECK(whole.param_groups()[0].options().get_lr() < 0.05);
}

}  // namespace checkpoint_entries_test
}  // namespace ddp
