#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "test/ddp/optim/optimizers.h"

namespace ddp::test {

/// A training that is interrupted, determined by a seed.
struct Training {
  struct Parameter {
    std::vector<int64_t> sizes;
    torch::Dtype dtype = torch::kFloat;
    size_t group = 0;
  };

  struct Step {
    std::vector<bool> missing;  // gradients, by parameter
    bool overflows = false;
    double rate = 0;  // of group 0 from this step on; 0: as before
  };

  /// The optimizer that keeps the state.
  enum class Holder { plain, fused, zero };

  /// A part of the training, with a program, ranks and objects of its own.
  struct Part {
    int ranks = 1;
    Holder holder = Holder::plain;
    size_t end = 1;  // steps of all parts up to this one
    bool in_background = false;
    bool loses_newest = false;  // checkpoint, after the part
  };

  uint64_t seed = 0;
  size_t kind = 0;  // of the optimizer
  bool is_scaled = false;
  std::vector<Parameter> parameters;
  std::vector<size_t> groups;  // step before which each group joins
  std::vector<Step> steps;
  std::vector<Part> parts;
};

Training random_training(uint64_t seed);

std::unique_ptr<Optimizer> make_optimizer(const Training& training,
                                          bool is_fused,
                                          const Groups& groups);

std::string describe(const Training& training);

}  // namespace ddp::test
