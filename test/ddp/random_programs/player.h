#pragma once

#include <array>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ddp/amp/grad_scaler.h"
#include "ddp/distributed_data_parallel.h"
#include "test/ddp/random_programs/learner.h"
#include "test/ddp/random_programs/values.h"
#include "test/support/local_ranks.h"

namespace ddp::test {

/// Thrown after a program has ended by the failure of its last act.
struct ProgramEnd : std::runtime_error {
  ProgramEnd() : std::runtime_error("ended as expected") {}
};

/// Runs a program with DistributedDataParallel or FullyShardedDataParallel on
/// one rank. Throws if an act does not have its expected result.
class Player {
 public:
  Player(const Program& program, const Group& group);

  void perform(size_t index);
  /// Returns the values that an act compares. Collective if the program shards
  /// its model.
  NamedValues values(size_t act) const;

  /// The two halves of a `train` act.
  void begin_train(size_t index);
  void end_train();

 private:
  struct Wrapper {
    std::shared_ptr<Exchange> exchange;
    std::shared_ptr<DistributedDataParallelBase> model;
    std::function<torch::Tensor(const std::vector<torch::Tensor>&)> forward;
    bool keeps_memory = false;
  };

  Wrapper& wrapper() { return wrappers_[program_.acts[index_].wrapper]; }
  DistributedDataParallelBase& model() { return *wrapper().model; }
  std::shared_ptr<Exchange> new_exchange();
  void wrap(const Act& act);
  /// Sets the holder of the wrapper.
  template <class Model>
  void set_model(Model model);
  void train(const Act& act);
  std::vector<torch::Tensor> inputs(int forward) const;
  torch::Tensor forward(int index);
  torch::Tensor scaled(const torch::Tensor& loss);
  void gather(const Act& act);
  void evaluate(const Act& act);
  void make_step(double clip);
  void step(const Act& act);
  void hold();
  void check_held() const;
  /// Returns the arguments of a Join.
  std::vector<std::reference_wrapper<Joinable>> joinables();
  void join(const Act& act);
  void join_in_part(const Act& act);

  // In changes.cpp.
  void load(const Act& act);
  void replace(const Act& act);
  void convert();

  // In mishaps.cpp.
  void inject_failure(const Act& act);
  void miss(const Act& act);
  void fail(const Act& act);

  const Program& program_;
  Group group_;
  int rank_;
  size_t index_ = 0;
  Learner learner_;
  std::unique_ptr<GradScaler> scaler_;
  std::vector<torch::Tensor> losses_;  // of a `train` act
  /// Gradients that the test keeps, and their values.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> held_;
  std::array<Wrapper, 2> wrappers_;  // both wrap the same module
};

}  // namespace ddp::test
