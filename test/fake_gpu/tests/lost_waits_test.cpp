#include <c10/cuda/CUDAFunctions.h>
#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <functional>
#include <sstream>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/detail/process_group/backends.h"
#include "ddp/distributed_data_parallel.h"
#include "test/fake_gpu/control.h"
#include "test/support/catch.h"
#include "test/support/rank_threads.h"

// Each wait of a stream for an event in a training step is lost once: the
// gradients are then wrong under some schedule, or the wait was not needed.
namespace fake_gpu::test {
namespace lost_waits_test {

using ddp::DistributedDataParallelOptions;
using torch::Tensor;

constexpr int kRanks = 2;
constexpr int kParameters = 5;  // each one fills a bucket
constexpr int kSometimesUnused = 2;

struct Schedule {
  Mode mode;
  uint64_t seed;
};

/// Lazy first, then priorities: some catch a loss that others do not.
constexpr uint64_t kSchedules = 30;
Schedule schedule_of(uint64_t i) {
  return {i == 0 ? Mode::lazy : Mode::priority, i};
}

/// Parameter i times (i + 1) x, so that its gradient is (i + 1) x.
struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kParameters; ++i) {
      parameters.push_back(
          register_parameter(c10::str("w", i), torch::ones({1000 + i})));
    }
  }
  std::vector<Tensor> forward(double x, bool uses_all) {
    std::vector<Tensor> outputs;
    for (int i = 0; i < kParameters; ++i) {
      if (uses_all || i != kSometimesUnused) {
        outputs.push_back(parameters[i] * ((i + 1) * x));
      }
    }
    return outputs;
  }
  std::vector<Tensor> parameters;
};

/// One rank: a thread with a device.
class Trainer {
 public:
  Trainer(int rank,
          const c10::intrusive_ptr<c10d::Store>& store,
          DistributedDataParallelOptions options,
          std::function<void()> meet)
      : rank_(rank),
        has_unused_(options.find_unused_parameters()),
        meet_(std::move(meet)),
        net_(std::make_shared<Net>()) {
    ddp::detail::BackendSpec spec;
    spec.store = store;
    spec.rank = rank;
    spec.size = kRanks;
    spec.device = c10::Device(c10::kCUDA, static_cast<int8_t>(rank));
    spec.timeout = std::chrono::seconds(60);
    group_ = ddp::detail::make_nccl_backend(spec);
    net_->to(spec.device);
    model_.emplace(net_, options.process_group(group_));
  }
  ~Trainer() { group_->shutdown(); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  int rank() const { return rank_; }

  /// Whether the gradients of this step, unlike those of any other, are right.
  bool step() {
    ++steps_;
    for (auto& parameter : net_->parameters) {
      parameter.mutable_grad() = Tensor();
    }
    try {
      const auto outputs = (*model_)->forward(
          input_of(rank_), /*uses_all=*/!has_unused_ || rank_ == 0);
      std::vector<Tensor> ones;
      for (const auto& output : outputs) {
        ones.push_back(torch::full_like(output, 1));
      }
      torch::autograd::backward(outputs, ones);
    } catch (const c10::Error&) {
      meet_();
      return false;
    }
    // All is queued on all ranks before anything is waited for.
    meet_();
    return has_right_gradients();
  }

 private:
  double input_of(int rank) const { return static_cast<double>(rank + steps_); }

  /// The mean over ranks of what multiplies the parameter.
  double expected_gradient(int i) const {
    const bool on_all = !has_unused_ || i != kSometimesUnused;
    double sum = 0;
    for (int rank = 0; rank < (on_all ? kRanks : 1); ++rank) {
      sum += (i + 1) * input_of(rank);
    }
    return sum / kRanks;
  }

  bool has_right_gradients() const {
    bool right = true;
    for (int i = 0; i < kParameters; ++i) {
      const Tensor& grad = net_->parameters[i].grad();
      right = right && grad.defined();
      if (grad.defined()) {
        const Tensor got = grad.cpu();
        right =
            right && got.allclose(torch::full_like(got, expected_gradient(i)));
      }
    }
    return right;
  }

  int rank_;
  bool has_unused_;
  std::function<void()> meet_;
  int64_t steps_ = 0;
  std::shared_ptr<Net> net_;
  c10::intrusive_ptr<c10d::Backend> group_;
  std::optional<ddp::DistributedDataParallel<Net>> model_;
};

/// What losing the wait of one number did, over ranks and schedules.
struct Loss {
  bool exists = false;  // the step has so many waits
  bool caught = false;
  bool needed = false;  // somewhere nothing took its place
};

/// What one rank saw of one step.
struct Seen {
  bool right = true;
  LostWait fate = LostWait::none;
};

class Experiment {
 public:
  explicit Experiment(DistributedDataParallelOptions options)
      : options_(std::move(options)) {}

  /// What losing each wait of a step did, from the first one.
  std::vector<Loss> run() {
    ddp::test::throw_first(
        ddp::test::try_rank_threads(kRanks, [this](int rank) { work(rank); }));
    return losses_;
  }

 private:
  void work(int rank) {
    Trainer trainer(rank, store_, options_, [this] { meet(); });
    recover(trainer);
    for (uint64_t n = 1;; ++n) {
      const Loss loss = lose(trainer, n);
      if (!loss.exists) {
        break;
      }
      if (rank == 0) {
        losses_.push_back(loss);
      }
    }
    meet();  // nobody leaves before the others are ready
  }

  /// Steps without the n-th wait, under schedules until one catches the loss,
  /// or two have shown that nothing was lost.
  Loss lose(Trainer& trainer, uint64_t n) {
    Loss loss;
    for (uint64_t i = 0; i < kSchedules && !loss.caught; ++i) {
      if (i == 2 && !loss.needed) {
        break;
      }
      tell(trainer, [&] {
        schedule(schedule_of(i).mode, schedule_of(i).seed);
        lose_wait(n);
      });
      const auto seen = step(trainer);
      for (const Seen& one : seen) {
        loss.exists |= one.fate != LostWait::none;
        loss.caught |= !one.right;
        loss.needed |= one.fate == LostWait::missing;
      }
      tell(trainer, [] { lose_wait(0); });
      recover(trainer);
    }
    return loss;
  }

  /// Steps until both ranks are right again: what was wrong may be seen twice.
  void recover(Trainer& trainer) {
    constexpr int kPatience = 8;
    int right_steps = 0;
    for (int i = 0; right_steps < 2; ++i) {
      TORCH_CHECK(i < kPatience, "Expected right gradients with all waits");
      const auto seen = step(trainer);
      const bool right = std::all_of(
          seen.begin(), seen.end(), [](const Seen& one) { return one.right; });
      right_steps = right ? right_steps + 1 : 0;
    }
  }

  /// What all ranks saw.
  std::array<Seen, kRanks> step(Trainer& trainer) {
    const int rank = trainer.rank();
    seen_[rank] = {trainer.step(), lost_wait(rank)};
    c10::cuda::device_synchronize();
    meet();
    const auto seen = seen_;
    meet();
    return seen;
  }

  /// All ranks meet; one of them does it; all go on.
  template <typename Action>
  void tell(const Trainer& trainer, const Action& action) {
    meet();
    if (trainer.rank() == 0) {
      action();
    }
    meet();
  }

  void meet() { meeting_.arrive_and_wait(); }

  DistributedDataParallelOptions options_;
  c10::intrusive_ptr<c10d::Store> store_ =
      c10::make_intrusive<c10d::HashStore>();
  std::barrier<> meeting_{kRanks};
  std::array<Seen, kRanks> seen_;
  std::vector<Loss> losses_;
};

/// With find_unused_parameters the streams wait for the used map, too, after
/// the last bucket: a later collective on the same stream of NCCL's, and no
/// gradient is touched in between. So the wait for that bucket is not needed.
bool is_known_redundant(uint64_t n, bool find_unused) {
  constexpr uint64_t kStarts = kParameters;    // NCCL's waits for the buckets
  constexpr uint64_t kFinishes = kParameters;  // the waits for NCCL
  return find_unused && n == kStarts + kFinishes;
}

TEST_CASE("losing any wait of a step is caught, or it was redundant",
          "[.lost_waits]") {
  const bool as_view = GENERATE(false, true);
  const bool find_unused = GENERATE(false, true);
  const auto losses = Experiment(DistributedDataParallelOptions()
                                     .bucket_cap_mb(0.003)
                                     .first_bucket_cap_mb(0.003)
                                     .gradient_as_bucket_view(as_view)
                                     .find_unused_parameters(find_unused))
                          .run();
  std::ostringstream table;
  int caught = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const Loss& loss = losses[i];
    const bool redundant =
        !loss.needed || is_known_redundant(i + 1, find_unused);
    table << "wait " << i + 1 << (loss.caught ? ": caught" : ": not caught")
          << (redundant ? ", redundant" : "") << '\n';
    caught += loss.caught ? 1 : 0;
    INFO(table.str());
    CHECK((loss.caught || redundant));
  }
  INFO(table.str());
  CHECK(losses.size() == 2 * kParameters + (find_unused ? 2 : 0));
  // Of the buckets those of NCCL's stream and the last one of the caller's; of
  // the used map both.
  CHECK(caught == kParameters + 1 + (find_unused ? 1 : 0));
}

}  // namespace lost_waits_test
}  // namespace fake_gpu::test
