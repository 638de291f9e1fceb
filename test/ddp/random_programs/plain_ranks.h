#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "test/ddp/random_programs/learner.h"

namespace ddp::test {

/// What a program comes to without DistributedDataParallel: plain modules on
/// one thread, whose gradients are averaged by hand.
class PlainRanks {
 public:
  explicit PlainRanks(const Program& program);

  void perform(size_t act);
  const Learner& rank(int rank) const { return *ranks_[rank]; }

 private:
  using Pass = std::vector<bool>;  // ranks that have inputs
  using Tensors = std::vector<torch::Tensor>;

  void wrap(const Act& act);
  void bring_together();
  bool is_in_graph(size_t parameter) const;
  Tensors forward(size_t act, int rank, int forwards, int first = 0);
  void backward(int rank, const Tensors& losses);
  void reduce(size_t act, const Pass& live, double divisor);
  void reduce(size_t act, const Pass& live, double divisor, size_t parameter);
  void step_in_backward();
  void copy_buffers(int source);
  void copy_parameters(int source);
  void train(size_t act);
  void gather(size_t act);
  void evaluate(size_t act);
  void step(const Act& act);
  void freeze(const Act& act);
  void join(size_t act);
  void clear();

  const Program& program_;
  std::vector<std::unique_ptr<Learner>> ranks_;
  std::vector<std::string> names_;           // of parameters
  std::set<size_t> shared_;                  // parameters that are reduced
  std::map<size_t, torch::Tensor> stepped_;  // means, by parameter
  bool syncs_ = true;                        // init_sync
  // By rank: those that got a gradient in this pass, in passes alone.
  std::vector<std::set<size_t>> arrived_, accumulated_;
};

}  // namespace ddp::test
