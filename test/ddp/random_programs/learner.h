#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include "test/ddp/random_programs/program.h"

namespace ddp::test {

/// The module of a program. Its values differ between ranks.
class RandomNetImpl : public torch::nn::Module {
 public:
  RandomNetImpl(const Program& program, int rank);

  /// The sum of all parts, twelve times: by whatever number of ranks it is
  /// divided, an integer stays one. In training it counts into buffers.
  torch::Tensor forward(const std::vector<torch::Tensor>& inputs);

 private:
  torch::Tensor term(size_t part, const torch::Tensor& input);

  std::vector<Part> parts_;
  std::vector<torch::Tensor> weights_;
  std::vector<torch::Tensor> factors_;  // of products
  std::vector<torch::nn::Embedding> tables_;
  torch::Tensor sum_, count_, own_;
};
TORCH_MODULE(RandomNet);

/// A module and its optimizer, of one rank.
struct Learner {
  Learner(const Program& program, int rank);

  void step(double clip);
  void zero(Zero how);
  /// All parameters of a part.
  void freeze_or_thaw(size_t part);

  RandomNet net;
  /// Each once, also a tied one.
  std::vector<torch::Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

/// Parameters and buffers that stay a rank's own.
std::vector<std::string> ignored_names(const Program& program);
bool is_ignored(const Program& program, const std::string& name);

/// A tensor's name and its values; undefined for a gradient that is not there.
using NamedValues = std::vector<std::pair<std::string, torch::Tensor>>;

/// Copies of all that a rank has: parameters, gradients, buffers.
NamedValues values_of(const Learner& learner);

/// The name of the first that differs and both values, "" for none.
std::string first_difference(const NamedValues& expected,
                             const NamedValues& got);

}  // namespace ddp::test
