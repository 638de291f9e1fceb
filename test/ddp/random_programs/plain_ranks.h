#pragma once

#include <array>
#include <deque>
#include <vector>

#include "test/ddp/random_programs/plain_reduction.h"
#include "test/ddp/random_programs/plain_scaler.h"

namespace ddp::test {

/// Computes a program's results without DistributedDataParallel: on plain
/// modules in one thread, with explicit averages of gradients.
class PlainRanks {
 public:
  explicit PlainRanks(const Program& program);

  void perform(size_t act);
  const Learner& rank(int rank) const { return *ranks_[rank]; }

 private:
  using Tensors = std::vector<torch::Tensor>;

  void wrap(const Act& act);
  void verify_and_broadcast(int wrapper);
  torch::Tensor forward(size_t act, int rank, int index);
  torch::Tensor scaled(int rank, const torch::Tensor& loss) const;
  void train(size_t act);
  void inject_failure(size_t act);
  void gather(size_t act);
  void evaluate(size_t act);
  void make_step(double clip, const std::vector<bool>& selected);
  void end_join(int source);
  void step(const Act& act);
  void join(size_t act);
  void join_in_part(size_t act);
  void run_failed_pass(size_t act);
  void share_buffers(int source);

  const Program& program_;
  Learners ranks_;
  std::vector<PlainScaler> scalers_;
  std::deque<PlainReduction> reductions_;  // by wrapper
  PlainReduction* reduction_;              // of the act's wrapper
  std::array<bool, 2> syncs_{true, true};  // init_sync, by wrapper
};

}  // namespace ddp::test
