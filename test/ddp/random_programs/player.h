#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/step_in_backward.h"
#include "ddp/exchanges/weighted_mean.h"
#include "test/ddp/random_programs/learner.h"
#include "test/support/local_ranks.h"

namespace ddp::test {

/// One rank of a program, with DistributedDataParallel. Throws what is not as
/// expected.
class Player {
 public:
  Player(const Program& program, const Group& group)
      : program_(program),
        group_(group),
        rank_(group->getRank()),
        learner_(program, rank_) {}

  void perform(size_t index);
  const Learner& learner() const { return learner_; }

 private:
  std::shared_ptr<Exchange> make_exchange();
  void wrap(const Act& act);
  std::vector<torch::Tensor> inputs(int forward) const;
  void stumble(const Act& act);
  void weigh(double weight);
  void check_held() const;
  void train(const Act& act);
  void gather(const Act& act);
  void evaluate(const Act& act);
  void make_step(double clip);
  void step(const Act& act);
  void join(const Act& act);
  void miss(const Act& act);
  void fail(const Act& act);

  const Program& program_;
  Group group_;
  int rank_;
  size_t index_ = 0;
  Learner learner_;
  /// Gradients that somebody holds, and their values.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> held_;
  bool keeps_memory_ = false;
  std::shared_ptr<WeightedMean> weights_;
  std::shared_ptr<StepInBackward> stepper_;
  DistributedDataParallel<RandomNetImpl> model_{nullptr};
};

}  // namespace ddp::test
