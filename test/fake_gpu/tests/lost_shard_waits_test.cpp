#include <pthread.h>
#include <sys/mman.h>

#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <string>
#include <utility>

#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/job/detail/peer_state.h"
#include "ddp/job/peers.h"
#include "ddp/process_group.h"
#include "test/fake_gpu/tests/lost_waits.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"

// The waits of FullyShardedDataParallel in a job: gathers and sums of gradients
// have groups of their own, and a group over Gloo compares the uses, so that
// the host does not wait for the GPU. The ranks are processes, because a
// process has one job.
namespace fake_gpu::test {
namespace lost_shard_waits_test {

using ddp::FullyShardedDataParallelOptions;
using ddp::test::NcclRank;
using torch::Tensor;

constexpr int kUnits = 4;
/// Elements of a parameter: a whole unit, so that temporary tensors get memory
/// of earlier units, and units memory of temporary tensors.
constexpr int64_t kNumel = 8192;

/// Output i is 2 * parameter i * input i. The product is a temporary tensor.
struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kUnits; ++i) {
      weights.push_back(
          register_parameter(c10::str("w", i), torch::ones({kNumel})));
    }
  }
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) {
    std::vector<Tensor> outputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      outputs.push_back(weights[i] * inputs[i] * 2);
    }
    return outputs;
  }
  std::vector<Tensor> weights;
};

class ShardTrainer : public Trainer {
 public:
  explicit ShardTrainer(const FullyShardedDataParallelOptions& options)
      : model_(on_device(), options) {
    if (rank_ == 0) {
      vote().vote_to_stop();
    }
  }

  bool forward() override {
    ++steps_;
    model_->zero_grad();
    inputs_.clear();
    auto leaves = model_->parameters();
    for (int i = 0; i < kUnits; ++i) {
      const torch::NoGradGuard no_grad;
      leaves[static_cast<size_t>(i)].fill_(weight(i));  // an optimizer's step
      inputs_.push_back(
          torch::full({kNumel}, input(i, rank_), ddp::local_device())
              .requires_grad_());
    }
    outputs_ = model_->forward(inputs_);
    return true;
  }

  void backward() override {
    std::vector<Tensor> ones;
    for (const auto& output : outputs_) {
      ones.push_back(torch::full_like(output, 1));
    }
    torch::autograd::backward(outputs_, ones);
  }

  /// Compares the outputs, the gradients of the inputs, for which the backward
  /// pass gathers the parameters again, the gradients of the leaves, and the
  /// vote to stop, to which rank 1 has not agreed.
  bool is_right() override {
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> got;
    std::vector<Tensor> expected;
    const auto compare = [&](const Tensor& values, double value) {
      // A gradient of a leaf allows no operator over all its elements.
      got.push_back(
          values.to(torch::kFloat, /*non_blocking=*/false, /*copy=*/true));
      expected.push_back(torch::full({values.numel()}, value));
    };
    for (int i = 0; i < kUnits; ++i) {
      const auto index = static_cast<size_t>(i);
      compare(outputs_[index], 2 * weight(i) * input(i, rank_));
      compare(inputs_[index].grad(), 2 * weight(i));
      compare(model_->parameters()[index].grad(), input(i, 0) + input(i, 1));
    }
    // An agreement lasts until the end of the job.
    const bool had_agreed = std::exchange(has_agreed_, vote().is_agreed());
    return has_agreed_ == had_agreed &&
           torch::cat(got).cpu().equal(torch::cat(expected));
  }

 private:
  static std::shared_ptr<Net> on_device() {
    auto net = std::make_shared<Net>();
    net->to(ddp::local_device());
    return net;
  }
  static ddp::detail::StopVote& vote() {
    return ddp::detail::peer_state_of(*ddp::process_group())->stop_vote();
  }

  // Small integers: every dtype has all results.
  double weight(int i) const {
    return static_cast<double>(1 + i + steps_ % 13);
  }
  double input(int i, int rank) const {
    return static_cast<double>(1 + i + rank + steps_ % 5);
  }

  const int rank_ = ddp::rank();
  int64_t steps_ = 0;
  bool has_agreed_ = false;
  ddp::FullyShardedDataParallel<Net> model_;
  std::vector<Tensor> inputs_;
  std::vector<Tensor> outputs_;
};

/// Memory that the ranks share.
struct Shared {
  AllSeen seen;
  pthread_barrier_t barrier;
};

class SharedMemory {
 public:
  SharedMemory() {
    auto* memory = ::mmap(nullptr,
                          sizeof(Shared),
                          PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS,
                          /*fd=*/-1,
                          /*offset=*/0);
    REQUIRE(memory != MAP_FAILED);
    shared_ = new (memory) Shared;
    pthread_barrierattr_t attributes;
    ::pthread_barrierattr_init(&attributes);
    ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    ::pthread_barrier_init(&shared_->barrier, &attributes, kRanks);
  }
  ~SharedMemory() { ::munmap(shared_, sizeof(Shared)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  Shared* operator->() const { return shared_; }

 private:
  Shared* shared_;
};

TEST_CASE("losing any wait of a sharded step is caught, or it was redundant") {
  const std::string how =
      GENERATE("no option", "reshard_after_forward(false)", "other dtypes");
  CAPTURE(how);
  const bool reshards = how != "reshard_after_forward(false)";
  const bool converts = how == "other dtypes";
  auto options =
      FullyShardedDataParallelOptions().unit_cap_mb(0.01).reshard_after_forward(
          reshards);
  if (converts) {
    options.param_dtype(torch::kBFloat16).reduce_dtype(torch::kFloat);
  }
  // The backward pass has two units from the end of the forward.
  const size_t gathers = kUnits + (reshards ? kUnits - 2 : 0);
  const size_t sums = kUnits + 1;  // the last one is that of the marks
  const size_t waits = 2 * (gathers + sums);
  // NCCL waits for the caller's stream at the start of each collective, and the
  // caller's stream for NCCL at its end. Two of NCCL's waits are not needed:
  // - The first operator starts the second gather right after the first one.
  //   Nothing is queued in between, unless the slab is converted.
  // - The marks are written before the last sum of gradients starts.
  const auto is_redundant = [&](uint64_t n) {
    return (n == 3 && !converts) || n == waits - 1;
  };
  const SharedMemory shared;
  const auto ends = ddp::test::run_rank_processes(kRanks, [&](int index) {
    NcclRank rank;
    rank.rank = index;
    rank.size = kRanks;
    rank.meet = [&] { ::pthread_barrier_wait(&shared->barrier); };
    const auto losses = repeat_until_caught([&] {
      ddp::init_process_group();
      const Subject subject{
          [&] { return std::make_unique<ShardTrainer>(options); },
          is_redundant};
      auto mine = lose_each_wait(rank, subject, shared->seen);
      ddp::destroy_process_group();
      return mine;
    });
    const size_t redundant = converts ? 1 : 2;
    rank.expect(losses.size() == waits && are_caught(losses) &&
                    count_caught(losses) == static_cast<int>(waits - redundant),
                table_of(losses));
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.exit_code == 0);
    CHECK(end.signal == 0);
  }
}

}  // namespace lost_shard_waits_test
}  // namespace fake_gpu::test
