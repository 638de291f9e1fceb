// Programs with several models of equal shape. If ranks make the passes in
// other orders, leave some out or make more, the program ends soon with an
// error on all ranks; else it trains right. To run more programs:
//   DDP_PROGRAMS=150 DDP_PROGRAMS_SEED=100 departures_test [orders]
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/job/backends.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/dice.h"
#include "test/support/number_from.h"
#include "test/support/rank_processes.h"

namespace ddp {
namespace random_orders_test {

using Catch::Contains;
using test::RankEnd;
using torch::Tensor;

constexpr int64_t kNumel = 48;
constexpr double kRate = 0.125;

/// Parameters without layers. Each is a bucket.
struct PartsImpl : torch::nn::Module {
  explicit PartsImpl(int count) {
    for (int i = 0; i < count; ++i) {
      register_parameter("part" + std::to_string(i), torch::ones({kNumel}));
    }
  }
  Tensor forward(double scale) {
    Tensor sum = torch::zeros({});
    for (const auto& part : parameters()) {
      sum = sum + (part * scale).sum();
    }
    return sum;
  }
};
TORCH_MODULE(Parts);
using Model = DistributedDataParallel<PartsImpl>;

/// One call of a rank.
struct Act {
  enum class Kind { pass, two_passes, barrier, reduce, gather };
  Kind kind = Kind::pass;
  int model = 0;
  int other = 0;  ///< of two passes

  bool operator==(const Act& act) const {
    return kind == act.kind && model == act.model && other == act.other;
  }
};

/// A training, determined by a seed.
struct Program {
  uint64_t seed = 0;
  bool over_gloo = false;
  int models = 2;
  int parts = 1;
  bool find_unused = false;
  std::vector<std::vector<Act>> acts;  // by rank

  bool is_right() const {
    return std::all_of(acts.begin(), acts.end(), [&](const auto& each) {
      return each == acts.front();
    });
  }
};

Act random_act(test::Dice& dice, int models) {
  const auto kind = dice.any_of<Act::Kind>({Act::Kind::pass,
                                            Act::Kind::pass,
                                            Act::Kind::pass,
                                            Act::Kind::pass,
                                            Act::Kind::two_passes,
                                            Act::Kind::barrier,
                                            Act::Kind::reduce,
                                            Act::Kind::gather});
  Act act{kind};
  if (kind == Act::Kind::pass || kind == Act::Kind::two_passes) {
    act.model = dice.below(models);
  }
  if (kind == Act::Kind::two_passes) {
    act.other = (act.model + 1 + dice.below(models - 1)) % models;
  }
  return act;
}

/// Swaps two acts, leaves one out, or adds one.
void change(std::vector<Act>& acts, test::Dice& dice, int models) {
  const int count = static_cast<int>(acts.size());
  const auto at = acts.begin() + dice.below(count);
  switch (dice.below(3)) {
    case 0:
      std::swap(*at, acts[static_cast<size_t>(dice.below(count))]);
      break;
    case 1:
      acts.erase(at);
      break;
    default:
      acts.insert(at, random_act(dice, models));
      break;
  }
}

Program random_program(uint64_t seed, int ranks) {
  test::Dice dice(seed);
  Program program;
  program.seed = seed;
  program.over_gloo = dice.chance(40);
  program.models = 2 + dice.below(3);
  program.parts = dice.any_of<int>({1, 2, 2, 5, 5, 5, 300});
  program.find_unused = dice.chance(25);
  std::vector<Act> acts(static_cast<size_t>(4 + dice.below(8)));
  for (auto& act : acts) {
    act = random_act(dice, program.models);
  }
  program.acts.assign(static_cast<size_t>(ranks), acts);
  for (int changes = dice.below(3); changes > 0; --changes) {
    change(program.acts[static_cast<size_t>(dice.below(ranks))],
           dice,
           program.models);
  }
  return program;
}

std::string describe(const Program& program) {
  constexpr const char* kKinds[] = {"", "+", "B", "R", "G"};
  std::string text = "seed " + std::to_string(program.seed) +
                     (program.over_gloo ? ", over Gloo, " : ", default, ") +
                     std::to_string(program.parts) + " buckets" +
                     (program.find_unused ? ", find_unused" : "");
  for (const auto& acts : program.acts) {
    text += "\n ";
    for (const auto& act : acts) {
      text += ' ';
      text += kKinds[static_cast<int>(act.kind)];
      text += std::to_string(act.model) + std::to_string(act.other);
    }
  }
  return text;
}

class Rank {
 public:
  Rank(const Program& program, int rank, int size)
      : rank_(rank), size_(size), expected_(program.models, 1) {
    for (int i = 0; i < program.models; ++i) {
      models_.emplace_back(Parts(program.parts),
                           DistributedDataParallelOptions()
                               .bucket_cap_mb(1e-6)
                               .first_bucket_cap_mb(1e-6)
                               .find_unused_parameters(program.find_unused));
    }
  }

  void perform(const Act& act) {
    switch (act.kind) {
      case Act::Kind::pass:
        loss_of(act.model).backward();
        step(act.model);
        break;
      case Act::Kind::two_passes:
        (loss_of(act.model) + loss_of(act.other)).backward();
        step(act.model);
        step(act.other);
        break;
      case Act::Kind::barrier:
        barrier();
        break;
      case Act::Kind::reduce:
        reduce_tensor(torch::ones({kNumel}));
        break;
      default:
        all_gather(torch::ones({1 + rank_}));
        break;
    }
  }

 private:
  Tensor loss_of(int model) {
    return models_[static_cast<size_t>(model)](
        static_cast<double>(model + 1 + rank_));
  }

  /// The mean gradient of a model is model + 1 + (size - 1) / 2.
  void step(int index) {
    const torch::NoGradGuard no_grad;
    auto& expected = expected_[static_cast<size_t>(index)];
    expected -= kRate * (index + 1 + (size_ - 1) / 2.0);
    for (auto& part : models_[static_cast<size_t>(index)]->parameters()) {
      part.sub_(part.grad(), kRate);
      TORCH_CHECK(part.sub(expected).abs().max().item<double>() < 1e-4,
                  "trained wrong: model ",
                  index,
                  " has ",
                  part,
                  " instead of ",
                  expected);
      part.mutable_grad() = Tensor();
    }
  }

  int rank_;
  int size_;
  std::vector<Model> models_;
  std::vector<double> expected_;
};

void run(const Program& program, int rank) {
  init_process_group(ProcessGroupOptions()
                         .backend("gloo")
                         .shared_memory(!program.over_gloo)
                         .timeout(std::chrono::minutes(10)));
  Rank models(program, rank, static_cast<int>(program.acts.size()));
  for (const auto& act : program.acts[static_cast<size_t>(rank)]) {
    models.perform(act);
  }
  destroy_process_group();
}

void check_ends(const Program& program, const std::vector<RankEnd>& ends) {
  INFO(describe(program));
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    INFO("rank " << rank << " of " << ends.size());
    CHECK(ends[rank].signal == 0);
    if (program.is_right()) {
      CHECK(ends[rank].error == "");
    } else {  // names ranks and calls, or ranks and passes
      CHECK_THAT(ends[rank].error,
                 Contains("rank") && !Contains("trained wrong") &&
                     (Contains(" in ") || Contains("same backward pass")));
      CHECK_THAT(ends[rank].error,
                 Contains("All ranks of a group must make the same calls") ||
                     Contains("Expected all ranks to make the same backward "
                              "pass"));
    }
  }
}

TEST_CASE("random orders of passes end soon, or train right",
          "[departures][orders]") {
  constexpr int kAtOnce = 6;
  const auto count = static_cast<int>(test::number_from("DDP_PROGRAMS", 12));
  // Programs 55 to 60 have 3 ranks. In 59 they once waited for each other.
  const auto first = test::number_from("DDP_PROGRAMS_SEED", 49);
  for (int done = 0, size = 2; done < count; done += kAtOnce, size = 5 - size) {
    std::vector<Program> programs;
    for (int i = done; i < std::min(count, done + kAtOnce); ++i) {
      programs.push_back(
          random_program(first + static_cast<uint64_t>(i), size));
    }
    const auto ends = test::run_jobs(
        static_cast<int>(programs.size()),
        size,
        [&](int job, int rank) {
          run(programs[static_cast<size_t>(job)], rank);
        },
        std::chrono::seconds(60));
    for (size_t job = 0; job < programs.size(); ++job) {
      check_ends(programs[job], ends[job]);
    }
  }
}

}  // namespace random_orders_test
}  // namespace ddp
