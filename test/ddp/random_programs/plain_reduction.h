#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "test/ddp/random_programs/learner.h"

namespace ddp::test {

/// The learners of all ranks, on one thread.
using Learners = std::vector<std::unique_ptr<Learner>>;

/// Computes how a wrapper changes the gradients of a program's ranks.
class PlainReduction {
 public:
  using Pass = std::vector<bool>;  // whether each rank has inputs

  PlainReduction(const Program& program, const Learners& ranks);

  /// Registers the parameters that require gradients now.
  void wrap();
  /// Runs a backward pass of one rank and records which parameters get a
  /// gradient.
  void backward(int rank, const torch::Tensor& loss, bool keeps_graph = false);
  /// Marks the gradients of the rank's last backward as local: the next pass
  /// averages them, too.
  void keep(int rank);
  /// Reduces the gradients of the ranks' last backward passes.
  void reduce(const Pass& live, double divisor);
  /// Ends a pass, even if it has thrown, and forgets earlier local gradients.
  void forget_pass();

 private:
  torch::Tensor gradient_of(size_t parameter,
                            const torch::Tensor& values) const;
  bool is_in_graph(size_t parameter) const;
  bool is_silent(size_t parameter) const;
  double divisor(double usual) const;
  void let_go(const Pass& live);
  double coding_error(double divisor) const;
  void reduce_one(double usual, size_t parameter);

  const Program& program_;
  const Learners& ranks_;
  std::vector<std::string> names_;  // of the parameters
  std::set<size_t> shared_;         // parameters that are reduced
  double last_error_ = 0;           // of the last pass, if it is sent again
  // By rank: parameters with a gradient from the last backward, and from local
  // passes.
  std::vector<std::set<size_t>> arrived_, accumulated_;
};

}  // namespace ddp::test
