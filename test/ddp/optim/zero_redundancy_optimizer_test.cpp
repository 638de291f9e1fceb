#include "ddp/optim/zero_redundancy_optimizer.h"

#include <functional>
#include <mutex>
#include <sstream>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>

#include "ddp/amp/grad_scaler.h"
#include "ddp/base/partition_whole.h"
#include "ddp/checkpoint.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/state/optimizer_state.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/join.h"
#include "test/ddp/amp/scaled_toy.h"
#include "test/ddp/optim/optimizers.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/local_ranks.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace zero_redundancy_test {

using Catch::Contains;
using test::copies;
using test::equal;
using test::Group;
using test::Groups;
using test::make_optimizer;
using test::Optimizer;
using test::run_ranks;
using test::set_gradients;
using test::Tensors;
using test::train;
using test::trained_alone;
using test::try_ranks;
using torch::Tensor;
using Owners = std::vector<int>;
using Elements = std::vector<int64_t>;

ZeroRedundancyOptimizer::Factory maker(const std::string& kind) {
  return [kind](const Groups& groups) { return make_optimizer(kind, groups); };
}

/// Parameters of several sizes, two dtypes and two memory orders, some large
/// enough for a message of their own.
Tensors mixed() {
  auto all = test::parameters({{7}, {3, 5}, {2}, {600, 500}, {0}, {11, 2}});
  all.push_back(test::numbers({9}, 50).to(torch::kDouble).requires_grad_());
  for (const int64_t width : {5, 220}) {
    all.push_back(test::numbers({2, 3, width, width}, width)
                      .contiguous(torch::MemoryFormat::ChannelsLast)
                      .requires_grad_());
  }
  return all;
}

TEST_CASE("parameters are given to ranks by size, the largest first",
          "[zero]") {
  Elements elements(3);
  CHECK(detail::partition_whole({5, 9, 5, 1, 4, 9}, elements) ==
        Owners{2, 0, 2, 1, 0, 1});
  CHECK(elements == Elements{13, 10, 10});
  // The next group continues from these counts.
  CHECK(detail::partition_whole({2, 2}, elements) == Owners{1, 2});
  CHECK(detail::partition_whole({}, elements).empty());
  Elements alone(1);
  CHECK(detail::partition_whole({3, 4}, alone) == Owners{0, 0});
}

TEST_CASE("a sharded optimizer equals the same one alone, bit for bit",
          "[zero][ranks]") {
  const int size = GENERATE(1, 2, 9);
  const auto kind = GENERATE(as<std::string>(),
                             "sgd",
                             "adam",
                             "adamw",
                             "rmsprop",
                             "adagrad",
                             "fused sgd",
                             "fused adam",
                             "fused adamw");
  const auto expected = trained_alone(mixed(), kind, 6);
  CAPTURE(size, kind);
  run_ranks(size, [&](const Group& group) {
    const auto params = mixed();
    ZeroRedundancyOptimizer optimizer(params, maker(kind), group);
    train(optimizer, params, 0, 6);
    TORCH_CHECK(equal(params, expected), "on rank ", group->getRank());
    TORCH_CHECK(optimizer.state().empty());
  });
}

TEST_CASE("it trains under DistributedDataParallel as one alone",
          "[zero][ranks]") {
  const int size = GENERATE(2, 3);
  const bool clips = GENERATE(true, false);
  run_ranks(size, [&](const Group& group) {
    const auto net = [] {
      torch::manual_seed(1);
      return torch::nn::Sequential(torch::nn::Linear(6, 8),
                                   torch::nn::Linear(8, 3));
    };
    static std::mutex seeding;
    std::unique_lock lock(seeding);
    auto sharded_net = net();
    auto plain_net = net();
    lock.unlock();
    const auto options = DistributedDataParallelOptions().process_group(group);
    DistributedDataParallel sharded_model(sharded_net, options);
    DistributedDataParallel plain_model(plain_net, options);
    ZeroRedundancyOptimizer sharded(
        sharded_model->parameters(), maker("adamw"), group);
    const auto plain =
        make_optimizer("adamw", Groups{plain_model->parameters()});
    const auto clip = [&](const Tensors& params) {
      return clips ? torch::nn::utils::clip_grad_norm_(params, 0.5) : 0;
    };
    for (int step = 0; step < 5; ++step) {
      const auto data = test::numbers({4, 6}, 100 * step + group->getRank());
      sharded.zero_grad();
      plain->zero_grad();
      sharded_model->forward(data).pow(2).sum().backward();
      plain_model->forward(data).pow(2).sum().backward();
      const double norm = clip(sharded_model->parameters());
      TORCH_CHECK(norm == clip(plain_model->parameters()));
      TORCH_CHECK(!clips || norm > 0.5);
      sharded.step();
      plain->step();
      TORCH_CHECK(
          equal(sharded_model->parameters(), plain_model->parameters()));
      if (step == 2) {  // gives the parameters other memory
        for (auto& param : sharded_model->parameters()) {
          param.set_data(param.detach().clone());
        }
      }
    }
  });
}

TEST_CASE("parameters that get another dtype are sent whole", "[zero][ranks]") {
  const auto convert = [](const Tensors& params) {
    for (auto param : params) {
      param.mutable_grad().reset();
      param.set_data(param.detach().to(torch::kDouble));
    }
  };
  run_ranks(2, [&](const Group& group) {
    // As float in one message of their owner, as double in two.
    const auto params = test::parameters({{1000, 200}, {1000, 200}, {7}, {5}});
    const auto reference = copies(params);
    ZeroRedundancyOptimizer optimizer(params, maker("sgd"), group);
    const auto alone = make_optimizer("sgd", Groups{reference});
    for (const int step : {0, 2}) {
      train(optimizer, params, step, step + 2);
      train(*alone, reference, step, step + 2);
      TORCH_CHECK(equal(params, reference));
      convert(params);
      convert(reference);
    }
  });
}

int64_t state_bytes(const Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const auto& [param, state] : optimizer.state()) {
    const auto& adam = static_cast<torch::optim::AdamParamState&>(*state);
    for (const auto& tensor :
         {adam.exp_avg(), adam.exp_avg_sq(), adam.max_exp_avg_sq()}) {
      bytes += tensor.defined() ? tensor.nbytes() : 0;
    }
  }
  return bytes;
}

TEST_CASE("p ranks keep 1/p of the state each, and send the parameters once",
          "[zero][ranks]") {
  const int size = GENERATE(1, 2, 3, 4);
  run_ranks(size, [&](const Group& group) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    const auto params =
        test::parameters(std::vector<std::vector<int64_t>>(24, {10, 10}));
    ZeroRedundancyOptimizer optimizer(params, maker("adam"), Group(counted));
    counted->take();
    set_gradients(params, 1);
    optimizer.step();
    const int64_t bytes = 24 * 100 * 4;
    TORCH_CHECK(state_bytes(optimizer.local()) == 3 * bytes / size);
    const auto traffic = counted->take();
    TORCH_CHECK(traffic.broadcast == (size == 1 ? 0 : bytes));
    TORCH_CHECK(traffic.all_reduce + traffic.all_gather == 0);
  });
}

TEST_CASE("the whole state comes together on rank 0", "[zero][ranks]") {
  const int size = GENERATE(1, 2, 3);
  const std::string kind = "fused adamw";
  run_ranks(size, [&](const Group& group) {
    const auto params = mixed();
    const auto reference = mixed();
    ZeroRedundancyOptimizer optimizer(params, maker(kind), group);
    const auto alone = make_optimizer(kind, Groups{reference});
    train(optimizer, params, 0, 3);
    train(*alone, reference, 0, 3);
    const auto state = optimizer.state_dict();
    TORCH_CHECK(state.isNone() == (group->getRank() != 0));
    train(optimizer, params, 3, 4);  // the whole state is a copy
    train(*alone, reference, 3, 4);
    TORCH_CHECK(equal(params, reference));
    if (!state.isNone()) {
      const auto again = trained_alone(mixed(), kind, 3);
      const auto whole = make_optimizer(kind, Groups{again});
      detail::load_optimizer(*whole, state);
      train(*whole, again, 3, 4);
      TORCH_CHECK(equal(again, reference));
    }
  });
}

TEST_CASE("a state of another number of ranks is taken", "[zero][ranks]") {
  const int before = GENERATE(1, 3);
  const int after = GENERATE(1, 2);
  const auto kind = GENERATE(as<std::string>(), "sgd", "adam", "adagrad");
  std::string bytes;
  run_ranks(before, [&](const Group& group) {
    const auto params = mixed();
    ZeroRedundancyOptimizer optimizer(params, maker(kind), group);
    train(optimizer, params, 0, 3);
    optimizer.param_groups()[0].options().set_lr(0.5);
    const auto state = optimizer.state_dict();
    if (!state.isNone()) {
      bytes = detail::to_bytes(state);
    }
  });
  auto reference = trained_alone(mixed(), kind, 3);
  const auto start = copies(reference);
  const auto alone = make_optimizer(kind, Groups{reference});
  // A plain optimizer loads it, too.
  detail::load_optimizer(*alone, detail::from_bytes(bytes));
  train(*alone, reference, 3, 6);
  run_ranks(after, [&](const Group& group) {
    const auto params = copies(start);
    ZeroRedundancyOptimizer optimizer(params, maker(kind), group);
    optimizer.load_state_dict(detail::from_bytes(bytes));
    TORCH_CHECK(optimizer.param_groups()[0].options().get_lr() == 0.5);
    train(optimizer, params, 3, 6);
    TORCH_CHECK(equal(params, reference));
  });
}

TEST_CASE("a checkpoint holds the whole state, for any number of ranks",
          "[zero][ranks][checkpoint]") {
  const int before = GENERATE(1, 3);
  const int after = GENERATE(2, 1, 3);
  const test::TemporaryFolder folder;
  const auto path = folder.path() + "/last.pt";
  const auto make = [] { return torch::nn::Linear(70, 3); };
  const auto step = [](torch::nn::Linear& net, Optimizer& optimizer, int seed) {
    net->weight.mutable_grad() = test::numbers({3, 70}, seed);
    net->bias.mutable_grad() = test::numbers({3}, seed + 1);
    optimizer.step();
  };
  const auto sharded = [&](torch::nn::Linear& net, const Group& group) {
    return ZeroRedundancyOptimizer(net->parameters(), maker("adamw"), group);
  };
  run_ranks(before, [&](const Group& group) {
    auto net = make();
    auto optimizer = sharded(net, group);
    step(net, optimizer, 1);
    Checkpoint(net).add("optimizer", optimizer).process_group(group).save(path);
  });
  auto reference = make();
  const auto alone = make_optimizer("adamw", Groups{reference->parameters()});
  Checkpoint(reference).add("optimizer", *alone).load(path);
  step(reference, *alone, 5);
  run_ranks(after, [&](const Group& group) {
    auto net = make();
    auto optimizer = sharded(net, group);
    Checkpoint(net).add("optimizer", optimizer).process_group(group).load(path);
    step(net, optimizer, 5);
    TORCH_CHECK(equal(net->parameters(), reference->parameters()));
  });
}

TEST_CASE("groups of a sharded optimizer keep their options, which may change",
          "[zero][ranks]") {
  run_ranks(2, [&](const Group& group) {
    const auto params = mixed();
    const auto reference = mixed();
    const auto groups = [](const Tensors& all) {
      Groups groups{Tensors{all[0], all[1], all[2]}, Tensors{all[3]}};
      groups[1].set_options(
          std::make_unique<torch::optim::SGDOptions>(0.03125));
      return groups;
    };
    const torch::optim::OptimizerParamGroup late(
        {params[4], params[5], params[6]});
    ZeroRedundancyOptimizer sharded(groups(params), maker("sgd"), group);
    const auto alone = make_optimizer("sgd", groups(reference));
    torch::optim::StepLR schedule(sharded, 2, 0.5);
    torch::optim::StepLR reference_schedule(*alone, 2, 0.5);
    for (int step = 0; step < 5; ++step) {
      if (step == 3) {
        sharded.add_param_group(late);
        alone->add_param_group(
            Tensors{reference[4], reference[5], reference[6]});
        break;
      }
      train(sharded, params, step, step + 1);
      train(*alone, reference, step, step + 1);
      schedule.step();
      reference_schedule.step();
    }
    train(sharded, params, 5, 8);
    train(*alone, reference, 5, 8);
    TORCH_CHECK(equal(params, reference));
    TORCH_CHECK(sharded.owners().size() == 3);
  });
}

TEST_CASE("ranks leave out a sharded step together", "[zero][ranks]") {
  const auto kind = GENERATE(as<std::string>(), "sgd", "fused adamw");
  run_ranks(3, [&](const Group& group) {
    GradScaler scaler(test::small_scaler().process_group(group));
    const auto params = mixed();
    const auto before = copies(params);
    ZeroRedundancyOptimizer optimizer(params, maker(kind), group);
    scaler.scale(torch::ones({}));
    set_gradients(params, 1);
    if (group->getRank() == 1) {
      params[0].mutable_grad().fill_(test::kInf);
    }
    TORCH_CHECK(!scaler.step(optimizer));
    scaler.update();
    TORCH_CHECK(equal(params, before));
    set_gradients(params, 2);
    TORCH_CHECK(scaler.step(optimizer));
    TORCH_CHECK(!equal(params, before));
  });
}

TEST_CASE("a rank without inputs steps its part", "[zero][ranks][join]") {
  run_ranks(3, [&](const Group& group) {
    const auto trained = [&](bool is_sharded) {
      torch::nn::Linear net(4, 3);
      {
        const c10::NoGradGuard no_grad;
        net->weight.copy_(test::numbers({3, 4}, 1));
        net->bias.copy_(test::numbers({3}, 2));
      }
      DistributedDataParallel model(
          net, DistributedDataParallelOptions().process_group(group));
      std::unique_ptr<Optimizer> optimizer;
      std::vector<std::reference_wrapper<Joinable>> joinables{*model};
      if (is_sharded) {
        auto sharded = std::make_unique<ZeroRedundancyOptimizer>(
            net->parameters(), maker("adamw"), group);
        joinables.emplace_back(*sharded);
        optimizer = std::move(sharded);
      } else {
        optimizer = make_optimizer("adamw", Groups{net->parameters()});
      }
      Join join(joinables);
      for (int step = 0; step <= group->getRank(); ++step) {
        optimizer->zero_grad();
        const auto data = test::numbers({2, 4}, 10 * step + group->getRank());
        model->forward(data).pow(2).sum().backward();
        optimizer->step();
      }
      if (is_sharded) {
        join.finish();
      } else {
        join.finish([&] { optimizer->step(); });
      }
      return net->parameters();
    };
    TORCH_CHECK(equal(trained(true), trained(false)));
  });
}

TEST_CASE("a sharded optimizer that a join does not step is told of it",
          "[zero][ranks][join][errors]") {
  const bool is_joined = GENERATE(true, false);
  const auto errors = try_ranks(2, [&](const Group& group) {
    torch::nn::Linear net(4, 3);
    DistributedDataParallel model(
        net, DistributedDataParallelOptions().process_group(group));
    ZeroRedundancyOptimizer optimizer(net->parameters(), maker("sgd"), group);
    std::vector<std::reference_wrapper<Joinable>> joinables{*model};
    if (is_joined) {
      joinables.emplace_back(optimizer);
    }
    Join join(joinables);
    for (int step = 0; step <= group->getRank(); ++step) {
      model->forward(torch::ones({2, 4})).sum().backward();
      optimizer.step();
    }
    join.finish([&] { optimizer.step(); });
  });
  CHECK_THAT(errors[0],
             Contains(is_joined ? "Expected no ZeroRedundancyOptimizer in the "
                                  "function that finish() of a Join calls"
                                : "Expected the ZeroRedundancyOptimizer in the "
                                  "Join that runs"));
}

TEST_CASE("parameters that ranks do not share are not sharded",
          "[zero][ranks][errors]") {
  const bool is_wrapped_first = GENERATE(true, false);
  const auto errors = try_ranks(2, [&](const Group& group) {
    torch::nn::Linear net(4, 3);
    const auto options = DistributedDataParallelOptions().process_group(group);
    const auto wrap = [&] {
      return DistributedDataParallel(
          net,
          DistributedDataParallelOptions(options).params_and_buffers_to_ignore(
              {"bias"}));
    };
    wrap();  // a destroyed wrapper is ignored
    const auto shard = [&] {
      return std::make_unique<ZeroRedundancyOptimizer>(
          net->parameters(), maker("sgd"), group);
    };
    if (is_wrapped_first) {
      const auto model = wrap();
      const ZeroRedundancyOptimizer shared(
          Tensors{net->weight}, maker("sgd"), group);
      shard();
    } else {
      const auto optimizer = shard();
      const auto model = wrap();
      set_gradients(net->parameters(), 1);
      optimizer->step();
    }
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("parameter 1 of group 0 is among the "
                        "params_and_buffers_to_ignore"));
  }
}

TEST_CASE("a closure of a sharded optimizer is called once", "[zero][ranks]") {
  run_ranks(3, [&](const Group& group) {  // rank 2 has no parameter
    const auto params = test::parameters({{2}, {2}});
    ZeroRedundancyOptimizer optimizer(params, maker("sgd"), group);
    int calls = 0;
    const auto loss = optimizer.step([&] {
      ++calls;
      set_gradients(params, 1);
      return torch::ones({});
    });
    TORCH_CHECK(calls == 1 && loss.item<double>() == 1);
  });
}

TEST_CASE("every rank names parameters that differ", "[zero][ranks]") {
  const auto what = GENERATE(as<std::string>(), "shape", "dtype", "count");
  const auto expected =
      what == "count"   ? "on rank 1: nothing;"
      : what == "shape" ? "on rank 1: parameter 1 of group 0 of Float [5], "
                        : "on rank 1: parameter 1 of group 0 of Double [3], ";
  const auto errors = try_ranks(3, [&](const Group& group) {
    auto params = test::parameters({{2}, {3}, {4}});
    if (group->getRank() == 1) {
      if (what == "shape") {
        params[1] = torch::zeros({5}).requires_grad_();
      } else if (what == "dtype") {
        params[1] = torch::zeros({3}, torch::kDouble).requires_grad_();
      } else {
        params.pop_back();
      }
    }
    ZeroRedundancyOptimizer optimizer(params, maker("sgd"), group);
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains(expected));
    CHECK_THAT(error, Contains("rank 1"));
  }
}

TEST_CASE("errors of a sharded optimizer", "[zero]") {
  const auto params = test::parameters({{2}, {3}});
  CHECK_THROWS_WITH(ZeroRedundancyOptimizer(Tensors{}, maker("sgd")),
                    Contains("at least one parameter"));
  CHECK_THROWS_WITH(
      ZeroRedundancyOptimizer(Tensors{params[0], params[0]}, maker("sgd")),
      Contains("each parameter once"));
  const auto square = torch::ones({3, 3}).requires_grad_();
  CHECK_THROWS_WITH(
      ZeroRedundancyOptimizer(
          Tensors{square, square.detach().t().requires_grad_()}, maker("sgd")),
      Contains("in memory of its own"));
  CHECK_THROWS_WITH(ZeroRedundancyOptimizer(
                        params,
                        [](const Groups& groups) {
                          return std::make_unique<torch::optim::LBFGS>(groups);
                        }),
                    Contains("has made LBFGS"));
  CHECK_THROWS_WITH(
      ZeroRedundancyOptimizer(params, [](const Groups&) { return nullptr; }),
      Contains("has made none"));
  ZeroRedundancyOptimizer optimizer(params, maker("sgd"));
  std::stringstream file;
  CHECK_THROWS_WITH(torch::save(optimizer, file), Contains("Checkpoint"));
  torch::save(*make_optimizer("sgd", Groups{params}), file);
  CHECK_THROWS_WITH(torch::load(optimizer, file), Contains("Checkpoint"));
  const auto state_of = [](const std::string& kind, const Tensors& some) {
    return detail::optimizer_to_value(*make_optimizer(kind, Groups{some}));
  };
  CHECK_THROWS_WITH(optimizer.load_state_dict(state_of("adamw", params)),
                    Contains("another one than SGD"));
  CHECK_THROWS_WITH(optimizer.load_state_dict(state_of("sgd", {params[0]})),
                    Contains("a group of 1 parameters, but this one's has 2"));
  optimizer.Optimizer::add_param_group(test::parameters({{4}}));
  CHECK_THROWS_WITH(optimizer.step(), Contains("add_param_group"));
}

}  // namespace zero_redundancy_test
}  // namespace ddp
