#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

namespace ddp::test {

/// A parameter, or two, and what a forward does with it.
struct Part {
  enum class Kind {
    plain,
    branch,   ///< which a rank may leave out, as `Unused` allows
    tied,     ///< under two names
    product,  ///< with another one
    rows,     ///< an embedding with sparse gradients
    frozen,   ///< when it is wrapped
    ignored   ///< by the wrapper
  };
  Kind kind = Kind::plain;
  torch::Dtype dtype = torch::kFloat;
  int64_t size = 1;
  bool is_checkpointed = false;
};

enum class Unused { refused, found, on_demand, fixed };

enum class Combine {
  mean,
  sum,
  predivided,
  checked,
  hook,
  narrow,
  weights,
  none,
  in_backward  ///< the mean, and the optimizer's step
};

enum class Stepper { sgd, momentum, fused_momentum, adam, fused_adam };

enum class Zero { keep, to_none, to_zero };

/// What all ranks do next. What differs between them is by rank.
struct Act {
  enum class Kind {
    wrap,      ///< the module, anew
    regroup,   ///< update_process_group
    train,     ///< one backward for some forwards
    gather,    ///< passes of each rank alone
    evaluate,  ///< without gradients
    step,      ///< of the optimizer, and zero_grad
    freeze,    ///< a part, or thaw it
    join,      ///< as many inputs as each rank has
    miss,      ///< a rank leaves out a part that it must not
    fail       ///< an exception leaves a rank's backward
  };
  enum class Hiccup { none, in_forward, in_backward };

  Kind kind = Kind::train;
  int who = 0;                   ///< the rank of miss, fail and the hiccup
  size_t part = 0;               ///< of freeze and miss
  int forwards = 1;              ///< of train; of join for each step
  Hiccup hiccup = Hiccup::none;  ///< an exception after which `who` trains on
  std::vector<int> counts;       ///< passes or inputs of each rank
  std::vector<double> weights;   ///< of each rank
  bool flag = false;             ///< see the functions
  Zero zero = Zero::to_none;     ///< of step
  double clip = 0;               ///< the largest norm, 0: any
  double bucket_cap_mb = 25;     ///< of wrap
  bool keeps_memory = false;     ///< gradient_as_bucket_view
  bool syncs = true;             ///< init_sync

  bool is_apart() const { return clip > 0; }  ///< train: a backward a forward
  bool by_module() const { return flag; }     ///< gather: without a guard
  bool in_training() const { return flag; }   ///< evaluate: as in training
  bool holds() const { return flag; }         ///< step: the gradients
  bool by_live() const { return flag; }       ///< join: what is divided by
  bool steps_joined() const { return clip == 0; }  ///< join: all ranks
};

/// A module, options and a training of which a seed decides everything. All
/// gradients are integers, and so are their means.
struct Program {
  uint64_t seed = 0;
  int size = 1;
  std::vector<Part> parts;
  Unused unused = Unused::refused;
  Combine combine = Combine::mean;
  Stepper stepper = Stepper::sgd;
  bool broadcasts = true;
  std::vector<Act> acts;

  /// Not in backward: in a world of one nothing is exchanged.
  bool steps_after_backward() const {
    return combine != Combine::in_backward || size == 1;
  }
};

Program random_program(uint64_t seed);

/// What rank `rank` gives to a forward of an act: for each part its factors, or
/// rows; undefined where it leaves the part out.
std::vector<torch::Tensor> inputs_of(const Program& program,
                                     size_t act,
                                     int forward,
                                     int rank);

std::string describe(const Program& program);
std::string describe(const Act& act);

}  // namespace ddp::test
