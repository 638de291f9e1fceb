#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include "test/ddp/random_programs/program.h"

namespace ddp::test {

/// The module of a program. Its values differ between ranks.
class RandomNetImpl : public torch::nn::Module {
 public:
  RandomNetImpl(const Program& program, int rank);

  /// Returns twelve times the sum of all parts, so that a division by any
  /// number of ranks gives integers. In training it also updates the buffers.
  torch::Tensor forward(const std::vector<torch::Tensor>& inputs);

  /// Makes forwards compute no activation twice, for a module without a
  /// wrapper.
  void compute_plainly() { is_plain_ = true; }

 private:
  using Function = std::function<torch::Tensor(const torch::Tensor&)>;

  void add_part(size_t part, double value);
  torch::Tensor term(size_t part, const torch::Tensor& input);
  torch::Tensor product(size_t part, const torch::Tensor& input) const;

  std::vector<Part> parts_;
  std::vector<torch::Tensor> weights_;
  std::vector<torch::Tensor> factors_;  // of products
  std::vector<torch::nn::Embedding> tables_;
  std::vector<torch::nn::BatchNorm1d> norms_;
  torch::Tensor sum_, count_, own_;
  bool is_plain_ = false;
};
TORCH_MODULE(RandomNet);

/// Returns a net with a file's values.
RandomNet net_in_file(const Program& program, size_t act);

/// Returns the name of the part's first parameter, or of its module.
std::string name_of(size_t part);
/// Returns the part of a parameter.
size_t part_of(const std::string& parameter);

/// Returns the parameters and buffers that the wrapper ignores.
std::vector<std::string> ignored_names(const Program& program);
bool is_ignored(const Program& program, const std::string& name);

}  // namespace ddp::test
