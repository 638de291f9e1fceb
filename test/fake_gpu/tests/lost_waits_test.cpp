#include "test/fake_gpu/tests/lost_waits.h"

#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <utility>

#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"

// The waits of DistributedDataParallel.
namespace fake_gpu::test {
namespace lost_waits_test {

using ddp::DistributedDataParallelOptions;
using ddp::test::NcclRank;
using torch::Tensor;

constexpr int kParameters = 5;  // each one fills a bucket
constexpr int kSometimesUnused = 2;

/// Output i is parameter i times (i + 1) x, so the gradient of its sum is
/// (i + 1) x.
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

class ReplicaTrainer : public Trainer {
 public:
  ReplicaTrainer(int rank, const DistributedDataParallelOptions& options)
      : rank_(rank),
        has_unused_(options.find_unused_parameters()),
        net_(on_device(rank)),
        model_(net_, options) {}

  bool forward() override {
    ++steps_;
    for (auto& parameter : net_->parameters) {
      parameter.mutable_grad() = Tensor();
    }
    try {
      outputs_ = model_->forward(input_of(rank_),
                                 /*uses_all=*/!has_unused_ || rank_ == 0);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }

  void backward() override {
    std::vector<Tensor> ones;
    for (const auto& output : outputs_) {
      ones.push_back(torch::full_like(output, 1));
    }
    torch::autograd::backward(std::exchange(outputs_, {}), ones);
  }

  bool is_right() override {
    std::vector<Tensor> got;
    std::vector<Tensor> expected;
    for (int i = 0; i < kParameters; ++i) {
      const Tensor& grad = net_->parameters[i].grad();
      if (!grad.defined()) {
        return false;
      }
      got.push_back(grad);
      expected.push_back(torch::full({grad.numel()}, expected_gradient(i)));
    }
    return torch::cat(got).cpu().allclose(torch::cat(expected));
  }

 private:
  static std::shared_ptr<Net> on_device(int rank) {
    auto net = std::make_shared<Net>();
    net->to(c10::Device(c10::kCUDA, static_cast<int8_t>(rank)));
    return net;
  }

  double input_of(int rank) const { return static_cast<double>(rank + steps_); }

  /// Returns the mean over the ranks of the factor of parameter i.
  double expected_gradient(int i) const {
    const bool on_all = !has_unused_ || i != kSometimesUnused;
    double sum = 0;
    for (int rank = 0; rank < (on_all ? kRanks : 1); ++rank) {
      sum += (i + 1) * input_of(rank);
    }
    return sum / kRanks;
  }

  int rank_;
  bool has_unused_;
  int64_t steps_ = 0;
  std::shared_ptr<Net> net_;
  ddp::DistributedDataParallel<Net> model_;
  std::vector<Tensor> outputs_;
};

/// Returns true for the redundant wait. With find_unused_parameters the streams
/// also wait for the used map, after the last bucket. Its collective is a later
/// one on the same NCCL stream, and no gradient is accessed in between, so the
/// wait for the last bucket is not needed.
bool is_known_redundant(uint64_t n, bool find_unused) {
  constexpr uint64_t kStarts = kParameters;    // NCCL's waits for the buckets
  constexpr uint64_t kFinishes = kParameters;  // the waits for NCCL
  return find_unused && n == kStarts + kFinishes;
}

std::vector<Loss> losses_with(const DistributedDataParallelOptions& options) {
  AllSeen seen;
  std::vector<Loss> losses;
  ddp::test::run_nccl_ranks(kRanks, [&](const NcclRank& rank) {
    auto of_group = options;
    of_group.process_group(rank.group);
    const Subject subject{
        [&] { return std::make_unique<ReplicaTrainer>(rank.rank, of_group); },
        [&](uint64_t n) {
          return is_known_redundant(n, options.find_unused_parameters());
        }};
    auto mine = lose_each_wait(rank, subject, seen);
    if (rank.rank == 0) {
      losses = std::move(mine);
    }
  });
  return losses;
}

TEST_CASE("losing any wait of a step is caught, or it was redundant",
          "[lost_waits]") {
  const bool as_view = GENERATE(false, true);
  const bool find_unused = GENERATE(false, true);
  const auto options = DistributedDataParallelOptions()
                           .bucket_cap_mb(0.003)
                           .first_bucket_cap_mb(0.003)
                           .gradient_as_bucket_view(as_view)
                           .find_unused_parameters(find_unused);
  const auto losses = repeat_until_caught([&] { return losses_with(options); });
  INFO(table_of(losses));
  CHECK(are_caught(losses));
  CHECK(losses.size() == 2 * kParameters + (find_unused ? 2 : 0));
  // For the buckets: all waits of NCCL's stream and the last wait of the
  // caller's stream. For the used map: both waits.
  CHECK(count_caught(losses) == kParameters + 1 + (find_unused ? 1 : 0));
}

}  // namespace lost_waits_test
}  // namespace fake_gpu::test
