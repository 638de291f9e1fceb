#include <algorithm>
#include <sstream>

#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/serialize.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/optim/detail/partition_evenly.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "test/ddp/optim/optimizers.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace zero_partition_test {

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
using Elements = std::vector<int64_t>;

constexpr int64_t kMore = detail::kRunElements - 1;

ZeroRedundancyOptimizer sharded(
    const Tensors& params,
    const std::string& kind,
    const Group& group,
    ZeroPartition partition = ZeroPartition::bucket) {
  return {params,
          [kind](const Groups& groups) { return make_optimizer(kind, groups); },
          ZeroRedundancyOptimizerOptions(group).partition(partition)};
}

/// Parameters with one large, one in another memory order, one empty, and two
/// dtypes. LibTorch's vector loops divide none of the sizes.
Tensors mixed() {
  auto all = test::parameters({{7}, {3, 5}, {2}, {61, 67}, {0}, {11, 2}});
  all.push_back(test::numbers({301}, 50).to(torch::kDouble).requires_grad_());
  all.push_back(test::numbers({2, 3, 5, 7}, 51)
                    .contiguous(torch::MemoryFormat::ChannelsLast)
                    .requires_grad_());
  return all;
}

TEST_CASE("a bucket is cut into equal runs that begin at a loop's", "[zero]") {
  const auto sizes = GENERATE(Elements{1000},
                              Elements{1, 1, 1, 1},
                              Elements{100000, 10, 0, 3, 7777},
                              Elements{5, 100000, 63, 64, 65},
                              Elements{0},
                              Elements{});
  const int ranks = GENERATE(1, 2, 3, 8);
  const auto had = GENERATE(Elements{}, Elements{500, 3});
  Elements elements(ranks);
  for (size_t r = 0; r < std::min(had.size(), elements.size()); ++r) {
    elements[r] = had[r];
  }
  const auto before = elements;
  const auto runs = detail::partition_evenly(sizes, elements);
  Elements given(ranks);
  Elements next(sizes.size());
  for (const auto& run : runs) {
    CHECK(run.first % detail::kRunElements == 0);
    CHECK(run.first == next[run.tensor]);
    next[run.tensor] += run.numel;
    given[run.rank] += run.numel;
  }
  CHECK(next == sizes);
  int64_t total = 0;
  for (int r = 0; r < ranks; ++r) {
    CHECK(elements[r] == before[r] + given[r]);
    total += elements[r];
  }
  for (int r = 0; r < ranks; ++r) {
    CHECK(elements[r] <=
          std::max(before[r], (total + ranks - 1) / ranks + kMore));
  }
  std::vector<bool> is_there(sizes.size());
  for (const auto& run : runs) {
    is_there[run.tensor] = true;  // also an empty tensor
  }
  CHECK(is_there == std::vector<bool>(sizes.size(), true));
}

TEST_CASE("by bucket equals the optimizer alone, bit for bit",
          "[zero][ranks]") {
  const int size = GENERATE(1, 2, 3);
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
    auto optimizer = sharded(params, kind, group);
    for (int step = 0; step < 6; ++step) {
      set_gradients(params, step);
      const auto version = params[3]._version();
      optimizer.step();
      const bool counts = size == 1 && kind == "fused sgd";
      TORCH_CHECK(!counts || params[3]._version() > version);
      for (const auto& part : optimizer.local().param_groups()[0].params()) {
        TORCH_CHECK(!part.grad().defined());
      }
    }
    TORCH_CHECK(equal(params, expected), "on rank ", group->getRank());
    TORCH_CHECK(params.back().is_contiguous(torch::MemoryFormat::ChannelsLast));
  });
}

int64_t state_bytes(const Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const auto& [param, state] : optimizer.state()) {
    const auto& adam = static_cast<torch::optim::AdamParamState&>(*state);
    for (const auto& tensor :
         {adam.exp_avg(), adam.exp_avg_sq(), adam.max_exp_avg_sq()}) {
      bytes += tensor.defined() ? tensor.storage().nbytes() : 0;
    }
  }
  return bytes;
}

TEST_CASE("by bucket each rank keeps 1/p of the state, whatever the sizes",
          "[zero][ranks]") {
  const int size = GENERATE(2, 3);
  const std::vector<int64_t> large{300, 200};  // more than all others together
  run_ranks(size, [&](const Group& group) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    const auto params =
        test::parameters({{33}, {70, 30}, large, {1}, {5}, {999}, {4096}});
    int64_t total = 0;
    for (const auto& param : params) {
      total += 3 * param.nbytes();  // amsgrad's tensors
    }
    const int64_t more = 3 * 4 * (kMore + 1);
    for (const auto partition :
         {ZeroPartition::bucket, ZeroPartition::parameter}) {
      auto optimizer = sharded(params, "adam", Group(counted), partition);
      counted->take();
      set_gradients(params, 1);
      optimizer.step();
      TORCH_CHECK(counted->take().broadcast == total / 3);
      const auto mine = state_bytes(optimizer.local());
      auto sum = torch::tensor(mine);
      std::vector<torch::Tensor> sums{sum};
      group->allreduce(sums)->wait();
      TORCH_CHECK(sum.item<int64_t>() == total);
      if (partition == ZeroPartition::bucket) {
        TORCH_CHECK(mine <= total / size + more, mine, " of ", total);
      } else if (group->getRank() == 0) {
        TORCH_CHECK(mine > total / size + more);  // has the large one
      }
    }
  });
}

TEST_CASE("a state goes from either partition into the other",
          "[zero][ranks]") {
  const auto [before, after] =
      GENERATE(std::pair(ZeroPartition::bucket, ZeroPartition::parameter),
               std::pair(ZeroPartition::parameter, ZeroPartition::bucket),
               std::pair(ZeroPartition::bucket, ZeroPartition::bucket));
  const auto from = before;  // C++17 cannot capture structured bindings
  const auto to = after;
  const auto kind = GENERATE(as<std::string>(), "sgd", "adamw", "adagrad");
  std::string file;
  run_ranks(3, [&](const Group& group) {
    const auto params = mixed();
    auto optimizer = sharded(params, kind, group, from);
    train(optimizer, params, 0, 3);
    optimizer.param_groups()[0].options().set_lr(0.5);
    if (const auto whole = optimizer.consolidate(1)) {
      std::ostringstream bytes;
      torch::save(*whole, bytes);
      file = bytes.str();
    }
  });
  auto reference = trained_alone(mixed(), kind, 3);
  const auto start = copies(reference);
  const auto alone = make_optimizer(kind, Groups{reference});
  std::istringstream bytes(file);
  torch::load(*alone, bytes);  // a plain optimizer loads it, too
  auto undisturbed = mixed();
  const auto first = make_optimizer(kind, Groups{undisturbed});
  train(*first, undisturbed, 0, 3);
  first->param_groups()[0].options().set_lr(0.5);
  train(*first, undisturbed, 3, 6);
  train(*alone, reference, 3, 6);
  REQUIRE(equal(reference, undisturbed));
  run_ranks(2, [&](const Group& group) {
    const auto params = copies(start);
    auto optimizer = sharded(params, kind, group, to);
    const auto whole = optimizer.make_whole();
    std::istringstream mine(file);
    torch::load(*whole, mine);
    optimizer.take(*whole);
    train(optimizer, params, 3, 6);
    TORCH_CHECK(equal(params, reference));
  });
}

TEST_CASE("by bucket it trains under DistributedDataParallel as one alone",
          "[zero][ranks]") {
  run_ranks(2, [&](const Group& group) {
    const auto trained = [&](bool by_bucket) {
      torch::nn::Linear net(30, 9);
      {
        const c10::NoGradGuard no_grad;
        net->weight.copy_(test::numbers({9, 30}, 1));
        net->bias.copy_(test::numbers({9}, 2));
      }
      DistributedDataParallel model(
          net, DistributedDataParallelOptions().process_group(group));
      std::unique_ptr<Optimizer> optimizer;
      if (by_bucket) {
        optimizer = std::make_unique<ZeroRedundancyOptimizer>(
            sharded(net->parameters(), "adamw", group));
      } else {
        optimizer = make_optimizer("adamw", Groups{net->parameters()});
      }
      for (int step = 0; step < 5; ++step) {
        optimizer->zero_grad(/*set_to_none=*/step % 2 == 0);
        const auto data = test::numbers({4, 30}, 100 * step + group->getRank());
        optimizer->step([&] {
          const auto loss = model->forward(data).pow(2).sum();
          loss.backward();
          const double norm =
              torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
          TORCH_CHECK(norm > 0.5);
          return loss;
        });
        if (step == 2) {  // gives the parameters other memory
          for (auto& param : net->parameters()) {
            param.set_data(param.detach().clone());
          }
        }
      }
      return net->parameters();
    };
    TORCH_CHECK(equal(trained(true), trained(false)));
  });
}

TEST_CASE("groups by bucket keep their options", "[zero][ranks]") {
  run_ranks(3, [&](const Group& group) {
    const auto params = mixed();
    const auto reference = mixed();
    const auto groups = [](const Tensors& all) {
      Groups groups{Tensors{all[0], all[1], all[2], all[6]}, Tensors{all[3]}};
      groups[1].set_options(
          std::make_unique<torch::optim::SGDOptions>(0.03125));
      return groups;
    };
    const auto late = [](const Tensors& all) {
      return torch::optim::OptimizerParamGroup({all[4], all[5], all[7]});
    };
    ZeroRedundancyOptimizer optimizer(
        groups(params),
        [](const Groups& of) { return make_optimizer("sgd", of); },
        ZeroRedundancyOptimizerOptions(group).partition(ZeroPartition::bucket));
    const auto alone = make_optimizer("sgd", groups(reference));
    train(optimizer, params, 0, 2);
    train(*alone, reference, 0, 2);
    optimizer.add_param_group(late(params));
    alone->add_param_group(late(reference));
    optimizer.param_groups()[0].options().set_lr(0.25);
    alone->param_groups()[0].options().set_lr(0.25);
    train(optimizer, params, 2, 5);
    train(*alone, reference, 2, 5);
    TORCH_CHECK(equal(params, reference));
  });
}

/// An optimizer with an unknown kind of state.
class Other : public Optimizer {
 public:
  explicit Other(const Groups& groups)
      : Optimizer(groups, std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure /*closure*/) override { return {}; }
};

TEST_CASE("by bucket it refuses what it cannot do, on every rank",
          "[zero][ranks]") {
  const auto options =
      ZeroRedundancyOptimizerOptions().partition(ZeroPartition::bucket);
  const auto make = [](const Groups& groups) {
    return std::make_unique<Other>(groups);
  };
  const auto params = test::parameters({{200}, {3}});
  CHECK_THROWS_WITH(ZeroRedundancyOptimizer(params, make, options),
                    Contains("Other") && Contains("ZeroPartition::parameter"));
  CHECK_THROWS_WITH(
      sharded({torch::zeros({8, 8}).slice(1, 0, 4)}, "sgd", nullptr),
      Contains("without gaps"));
  const auto errors = try_ranks(2, [&](const Group& group) {
    const auto mine = copies(params);
    auto optimizer = sharded(mine, "sgd", group);
    set_gradients(mine, 1);
    mine[1].mutable_grad() = torch::ones({3}).to_sparse();
    optimizer.step();
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("parameter 1 of group 0 has a sparse one"));
  }
  auto optimizer = sharded(params, "sgd", nullptr);
  const auto other = test::parameters({{100}, {3}});
  const auto wrong = make_optimizer("sgd", Groups{other});
  train(*wrong, other, 1, 2);
  CHECK_THROWS_WITH(optimizer.take(*wrong),
                    Contains("Expected a state of shape [200]"));
  params[1].set_data(torch::zeros({3}, torch::kDouble));
  CHECK_THROWS_WITH(optimizer.step(), Contains("parameter 1 of group 0"));
}

}  // namespace zero_partition_test
}  // namespace ddp
