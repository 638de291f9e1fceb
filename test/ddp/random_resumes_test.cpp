// Random trainings that are interrupted, each determined by a seed. Each part
// has its own number of ranks and its own way to keep the optimizer's state,
// and resumes from a checkpoint of the previous part. The result has to be that
// of one optimizer that was never interrupted. To run more of them:
//   DDP_TEST_SECONDS=0 DDP_RESUMES=10000 DDP_PROGRAMS_SEED=100
//   random_programs_test "random trainings*"
#include <algorithm>
#include <limits>
#include <utility>

#include <torch/nn/module.h>

#include "ddp/checkpoint.h"
#include "ddp/checkpoint/detail/folder_plan.h"
#include "ddp/checkpoint_folder.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "test/ddp/random_resumes/training.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/number_from.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace random_resumes_test {

using test::Group;
using test::Groups;
using test::Optimizer;
using test::Tensors;
using test::Training;
using torch::optim::OptimizerParamGroup;
using Holder = Training::Holder;
using Part = Training::Part;

/// The trained module. Later parts start from other values, which the
/// checkpoint has to replace.
struct NetImpl : torch::nn::Module {
  NetImpl(const Training& training, bool is_first) {
    for (size_t i = 0; i < training.parameters.size(); ++i) {
      const auto& [sizes, dtype, group] = training.parameters[i];
      auto values = test::numbers(sizes, i + (is_first ? 0 : 100)).to(dtype);
      if (sizes.size() == 4) {
        values = values.contiguous(torch::MemoryFormat::ChannelsLast);
      }
      all.push_back(register_parameter("p" + std::to_string(i), values));
    }
  }
  Tensors all;
};
TORCH_MODULE(Net);

/// Returns the parameter groups that join in the steps [begin, end).
Groups groups_between(const Training& training,
                      const Tensors& parameters,
                      size_t begin,
                      size_t end) {
  Groups groups;
  for (size_t g = 0; g < training.groups.size(); ++g) {
    if (training.groups[g] < begin || training.groups[g] >= end) {
      continue;
    }
    OptimizerParamGroup group(Tensors{});
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (training.parameters[i].group == g) {
        group.params().push_back(parameters[i]);
      }
    }
    groups.push_back(group);
  }
  return groups;
}

/// Returns the groups of an optimizer that is made before `step`. Groups of
/// step 0 always belong to it.
Groups first_groups(const Training& training,
                    const Tensors& parameters,
                    size_t step) {
  return groups_between(training, parameters, 0, std::max<size_t>(step, 1));
}

/// Returns the groups that join at `step`, unless first_groups() already has
/// them.
Groups next_groups(const Training& training,
                   const Tensors& parameters,
                   size_t step) {
  return groups_between(
      training, parameters, std::max<size_t>(step, 1), step + 1);
}

bool is_in(const Training& training, size_t parameter, size_t step) {
  return training.groups[training.parameters[parameter].group] <= step;
}

void set_gradients(const Training& training,
                   const Tensors& parameters,
                   size_t step,
                   double scale) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad().reset();
    if (!training.steps[step].missing[i] && is_in(training, i, step)) {
      const auto values =
          test::numbers(parameters[i].sizes(), 1000 * (step + 1) + i);
      parameters[i].mutable_grad() =
          torch::empty_like(parameters[i].detach()).copy_(values).mul_(scale);
    }
  }
  if (training.steps[step].overflows) {
    parameters[0].mutable_grad()[0] = std::numeric_limits<float>::infinity();
  }
}

void set_rate(const Training& training, Optimizer& optimizer, size_t step) {
  if (training.steps[step].rate != 0) {
    optimizer.param_groups()[0].options().set_lr(training.steps[step].rate);
  }
}

constexpr double kFirstScale = 1024;
constexpr int64_t kGrowthInterval = 2;

/// Returns the parameters and the final scale of one optimizer that is never
/// interrupted.
std::pair<Tensors, double> predict(const Training& training) {
  Net net(training, /*is_first=*/true);
  const auto optimizer = test::make_optimizer(
      training, /*is_fused=*/false, first_groups(training, net->all, 0));
  double scale = kFirstScale;
  int64_t good = 0;
  for (size_t step = 0; step < training.steps.size(); ++step) {
    for (auto& group : next_groups(training, net->all, step)) {
      optimizer->add_param_group(group);
    }
    set_rate(training, *optimizer, step);
    if (training.steps[step].overflows) {
      scale /= 2;
      good = 0;
      continue;
    }
    set_gradients(training, net->all, step, 1);
    optimizer->step();
    if (++good == kGrowthInterval) {
      scale *= 2;
      good = 0;
    }
  }
  return {net->all, training.is_scaled ? scale : 1};
}

/// One rank of a part.
class Player {
 public:
  Player(const Training& training,
         const Part& part,
         const Group& group,
         size_t begin,
         const std::string& folder)
      : training_(training),
        net_(training, /*is_first=*/begin == 0),
        scaler_(GradScalerOptions()
                    .init_scale(begin == 0 ? kFirstScale : 2)
                    .growth_interval(kGrowthInterval)
                    .enabled(training.is_scaled)),
        checkpoint_(net_),
        folder_(folder,
                CheckpointFolderOptions().in_background(part.in_background)) {
    const auto make = [&training, is_fused = part.holder == Holder::fused](
                          const Groups& groups) {
      return test::make_optimizer(training, is_fused, groups);
    };
    const auto groups = first_groups(training, net_->all, begin);
    if (part.holder == Holder::plain || part.holder == Holder::fused) {
      optimizer_ = make(groups);
    } else {
      optimizer_ =
          std::make_unique<ZeroRedundancyOptimizer>(groups, make, group);
      zero_ = static_cast<ZeroRedundancyOptimizer*>(optimizer_.get());
    }
    checkpoint_.add("optimizer", *optimizer_)
        .add("scaler", scaler_)
        .process_group(group);
    const bool loaded = folder_.load(checkpoint_);
    TORCH_CHECK(loaded == (begin > 0));
    TORCH_CHECK(checkpoint_.step() == static_cast<int64_t>(begin));
  }

  void train_to(size_t end) {
    for (size_t step = checkpoint_.step(); step < end; ++step) {
      for (auto& group : next_groups(training_, net_->all, step)) {
        zero_ != nullptr ? zero_->add_param_group(group)
                         : optimizer_->add_param_group(group);
      }
      set_rate(training_, *optimizer_, step);
      const auto scale = scaler_.scale(torch::ones({})).item<double>();
      set_gradients(training_, net_->all, step, scale);
      TORCH_CHECK(scaler_.step(*optimizer_) != training_.steps[step].overflows);
      scaler_.update();
      folder_.save(checkpoint_.step(static_cast<int64_t>(step) + 1));
    }
    folder_.wait();
  }

  const Tensors& parameters() const { return net_->all; }
  double scale() const { return scaler_.get_scale(); }

 private:
  const Training& training_;
  Net net_;
  GradScaler scaler_;
  std::unique_ptr<Optimizer> optimizer_;
  ZeroRedundancyOptimizer* zero_ = nullptr;
  Checkpoint checkpoint_;
  CheckpointFolder folder_;
};

/// Compares with the expected values: bit for bit, or within a tolerance if a
/// part used fused kernels, which round differently.
void check_equal(const Training& training,
                 const Player& player,
                 const std::pair<Tensors, double>& expected,
                 bool any_fused) {
  TORCH_CHECK(player.scale() == expected.second,
              "Expected the scale ",
              expected.second,
              ", but got ",
              player.scale());
  for (size_t i = 0; i < training.parameters.size(); ++i) {
    const auto& got = player.parameters()[i];
    const auto& wanted = expected.first[i];
    const bool is_exact = !any_fused || got.scalar_type() == torch::kBFloat16;
    TORCH_CHECK(is_exact ? torch::equal(got, wanted)
                         : torch::allclose(got, wanted, 1e-5, 1e-6),
                "Expected p",
                i,
                " to be that of the optimizer alone, but it differs by up to ",
                (got - wanted).abs().max());
  }
}

/// Returns whether the newest checkpoint can be lost: an earlier one with the
/// same parameter groups exists.
bool can_lose(const Training& training, size_t newest) {
  return newest > 1 &&
         std::count(
             training.groups.begin(), training.groups.end(), newest - 1) == 0;
}

/// Returns the differences from the uninterrupted training.
std::string play(const Training& training) {
  const auto expected = predict(training);
  const test::TemporaryFolder folder;
  bool any_fused = false;
  size_t begin = 0;
  for (const Part& part : training.parts) {
    any_fused = any_fused || part.holder == Holder::fused;
    const auto errors = test::try_ranks(part.ranks, [&](const Group& group) {
      Player player(training, part, group, begin, folder.path());
      player.train_to(part.end);
      if (part.end == training.steps.size()) {
        check_equal(training, player, expected, any_fused);
      }
    });
    for (size_t rank = 0; rank < errors.size(); ++rank) {
      if (!errors[rank].empty()) {
        return "part to step " + std::to_string(part.end) + ", rank " +
               std::to_string(rank) + ": " + errors[rank];
      }
    }
    begin = part.end;
    if (part.loses_newest && can_lose(training, begin)) {
      const auto name = detail::checkpoint_name(static_cast<int64_t>(begin));
      test::write_file(folder / name, "cut off");
      --begin;
    }
  }
  return "";
}

TEST_CASE("random trainings that go on from checkpoints", "[resumes]") {
  const uint64_t count = test::number_from("DDP_RESUMES", 8);
  const uint64_t first = test::number_from("DDP_PROGRAMS_SEED", 1);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const auto training = test::random_training(seed);
    INFO(describe(training));
    CHECK(play(training) == "");
  }
}

}  // namespace random_resumes_test
}  // namespace ddp
