#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "test/ddp/random_programs/random_net.h"
#include "test/support/local_ranks.h"

namespace ddp::test {

/// A module and its optimizer, of one rank.
class Learner {
 public:
  /// @param group  null: a sharded optimizer is to be a plain one.
  Learner(const Program& program, int rank, const Group& group = nullptr);

  /// The gradients that are not sparse, to a norm; 0: leaves them.
  void clip(double norm);
  void zero(Zero how);
  /// All parameters of a part.
  void freeze_or_thaw(size_t part);
  /// Gives each parameter that trains an integer gradient, by act and rank.
  void preset(size_t act);
  /// A number of this act to compare, for one that is not in the module.
  void note(const std::string& name, const torch::Tensor& value);

  RandomNet net;
  /// Each once, also a tied one.
  std::vector<torch::Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::vector<std::pair<std::string, torch::Tensor>> notes;

 private:
  const Program& program_;
  int rank_;
  std::vector<torch::Tensor> dense_;  // those whose gradients are not sparse
  // Of these, those whose gradients all ranks have alike.
  std::vector<torch::Tensor> clipped_;
};

}  // namespace ddp::test
