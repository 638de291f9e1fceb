#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "test/ddp/random_programs/random_net.h"
#include "test/support/local_ranks.h"

namespace ddp::test {

/// The module and the optimizer of one rank.
class Learner {
 public:
  /// @param group  group of a sharded optimizer; null: uses a plain optimizer
  ///     instead.
  Learner(const Program& program, int rank, const Group& group = nullptr);

  /// Clips the gradients to a total norm, except for sparse gradients and
  /// ignored parameters. 0: does nothing.
  void clip(double norm);
  void zero(Zero how);
  /// Freezes or unfreezes all parameters of a part.
  void freeze_or_thaw(size_t part);
  /// Gives each parameter that requires gradients an integer gradient, which
  /// depends on act and rank.
  void preset(size_t act);
  /// Records a number that the act compares but the module does not contain.
  void note(const std::string& name, const torch::Tensor& value);

  /// Trains the leaves of a sharded model instead of `parameters`. The leaves
  /// have the order of `parameters`.
  void train_leaves(const std::vector<torch::Tensor>& leaves);
  /// Returns the gradient of a parameter of `parameters` with all its elements.
  /// Collective if leaves are trained.
  torch::Tensor gradient_of(const torch::Tensor& parameter) const;

  RandomNet net;
  /// Each parameter once, even if it is tied.
  std::vector<torch::Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::vector<std::pair<std::string, torch::Tensor>> notes;
  /// Bound of the error of each gradient by a lossy exchange since zero().
  double coding_error = 0;

 private:
  bool is_silent(const torch::Tensor& parameter) const;

  const Program& program_;
  int rank_;
  Group group_;
  std::vector<torch::Tensor> leaves_;  // of a sharded model
  std::vector<torch::Tensor> dense_;   // with dense gradients
  // The dense parameters that the wrapper does not ignore: their gradients are
  // the same on all ranks.
  std::vector<torch::Tensor> clipped_;
};

}  // namespace ddp::test
