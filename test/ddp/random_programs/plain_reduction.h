#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "test/ddp/random_programs/learner.h"

namespace ddp::test {

/// All ranks, on one thread.
using Learners = std::vector<std::unique_ptr<Learner>>;

/// What a wrapper does with the gradients of a program's ranks, by hand.
class PlainReduction {
 public:
  using Pass = std::vector<bool>;  // ranks that have inputs

  PlainReduction(const Program& program, const Learners& ranks);

  /// The parameters as they are now.
  void wrap();
  /// Exchanges anew.
  void regroup() { passes_ = 0; }
  /// Of one rank; notes what gets a gradient.
  void backward(int rank, const torch::Tensor& loss, bool keeps_graph = false);
  /// That was of this rank alone, and is averaged with the next ones.
  void keep(int rank);
  /// What the ranks' last backwards have brought, and steps where that is done
  /// in backward.
  void reduce(const Act& act, const Pass& live, double divisor);
  /// One that has thrown for what it was to reduce, and all before.
  void forget_pass();

 private:
  torch::Tensor gradient_of(size_t parameter,
                            const torch::Tensor& values) const;
  void forget();
  bool is_in_graph(size_t parameter) const;
  double divisor(double usual, double weights) const;
  void let_go(const Pass& live);
  void reduce_one(const Act& act,
                  const Pass& live,
                  double usual,
                  size_t parameter);
  void step_in_backward();

  const Program& program_;
  const Learners& ranks_;
  std::vector<std::string> names_;  // of parameters
  std::set<size_t> shared_;         // parameters that are reduced
  int passes_ = 0;                  // of this exchange
  // By rank: those that got a gradient in this pass, in passes alone.
  std::vector<std::set<size_t>> arrived_, accumulated_;
  std::map<size_t, torch::Tensor> stepped_;  // means, by parameter
};

}  // namespace ddp::test
