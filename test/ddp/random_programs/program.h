#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddp/amp/mixed_precision.h"

namespace ddp::test {

/// A parameter, or two, and what a forward does with it.
struct Part {
  enum class Kind {
    plain,
    branch,   ///< which a rank may leave out, as `Unused` allows
    tied,     ///< under two names, used twice
    product,  ///< with another one
    matrix,   ///< whose gradients have rank one
    rows,     ///< an embedding with sparse gradients
    norm,     ///< of a batch
    frozen,   ///< when it is wrapped
    ignored   ///< by the wrapper
  };
  enum class Memory { kept, checkpointed, nested };  ///< activations
  Kind kind = Kind::plain;
  torch::Dtype dtype = torch::kFloat;
  int64_t size = 1;
  Memory memory = Memory::kept;
};

enum class Unused { refused, found, on_demand, fixed };

enum class Combine {
  mean,
  sum,
  predivided,
  checked,
  hook,
  narrow,
  coded,
  quantized,
  low_rank,
  switched,  ///< from the mean to the sum
  weights,
  none,
  in_backward  ///< the mean, and the optimizer's step
};

enum class Stepper {
  sgd,
  momentum,
  fused_momentum,
  sharded_momentum,
  adam,
  fused_adam,
  sharded_adam
};

enum class Buffers { own, broadcast, averaged };

enum class Zero { keep, to_none, to_zero };

/// Of what a file is, and what reads it.
enum class File { module, wrapper, submodule, checkpoint };

/// What all ranks do next. What differs between them is by rank.
struct Act {
  enum class Kind {
    wrap,      ///< the module, anew
    regroup,   ///< update_process_group
    train,     ///< one backward for some forwards
    pair,      ///< train both models, one inside the other
    gather,    ///< passes of each rank alone
    evaluate,  ///< without gradients
    step,      ///< of the optimizer, and zero_grad
    freeze,    ///< a part, or thaw it
    load,      ///< a file into the module
    replace,   ///< parameters' memory by copies, with set_data
    convert,   ///< all to double and back
    preset,    ///< other integers as `.grad` on each rank
    join,      ///< as many inputs as each rank has
    outrun,    ///< a Join that the first rank without inputs ends
    leave,     ///< a Join by an exception on all ranks
    miss,      ///< a rank leaves out a part that it must not
    spoil,     ///< a rank's gradient is not finite, and that is looked for
    fail       ///< an exception leaves a rank's backward
  };
  /// What `who` does before its backward, alone.
  enum class Hiccup { none, in_forward, in_backward, no_backward, inspection };

  Kind kind = Kind::train;
  int model = 0;
  int wrapper = 0;           ///< of the model's two
  int who = 0;               ///< the rank of miss, fail and the hiccup
  size_t part = 0;           ///< of freeze, load, miss and what is infinite
  File file = File::module;  ///< of load
  bool in_threads = false;   ///< train: forwards in one, backwards in another
  int forwards = 1;          ///< of train; of join for each step
  int repeats = 1;           ///< of train: backwards through one graph
  Hiccup hiccup = Hiccup::none;  ///< after which `who` trains on
  bool is_infinite = false;      ///< a gradient of `who`
  std::vector<int> counts;       ///< passes or inputs of each rank
  std::vector<double> weights;   ///< of each rank
  bool flag = false;             ///< see the functions
  Zero zero = Zero::to_none;     ///< of step
  double clip = 0;               ///< the largest norm, 0: any
  double bucket_cap_mb = 25;     ///< of wrap
  double first_cap_mb = 1;       ///< of wrap
  bool keeps_memory = false;     ///< gradient_as_bucket_view
  bool syncs = true;             ///< init_sync

  bool is_apart() const { return clip > 0; }  ///< train: a backward a forward
  bool by_module() const { return flag; }     ///< gather: without a guard
  bool in_training() const { return flag; }   ///< evaluate: as in training
  bool holds() const { return flag; }         ///< step: the gradients
  bool by_live() const { return flag; }       ///< join: what is divided by
  bool by_wrapper() const { return flag; }    ///< load: the checkpoint's model
  bool on_all() const { return flag; }        ///< replace: else on `who`
  bool is_dense() const { return flag; }      ///< preset: also of rows
  bool steps_joined() const { return clip == 0; }  ///< join: all ranks
  int fewest() const;                              ///< of the counts
  int most() const;
};

/// A module, options and a training of which a seed decides everything. All
/// gradients are integers, and so are their means.
struct Program {
  uint64_t seed = 0;
  int size = 1;
  int models = 1;  ///< alike, and with one group
  std::vector<Part> parts;
  Unused unused = Unused::refused;
  Combine combine = Combine::mean;
  Stepper stepper = Stepper::sgd;
  Buffers buffers = Buffers::broadcast;
  MixedPrecision precision;
  bool scales = false;  ///< with a GradScaler
  std::vector<Act> acts;

  /// Not in backward: in a world of one nothing is exchanged.
  bool steps_after_backward() const {
    return combine != Combine::in_backward || size == 1;
  }
  bool is_sharded() const {
    return stepper == Stepper::sharded_momentum ||
           stepper == Stepper::sharded_adam;
  }
  bool is_adam() const { return stepper >= Stepper::adam; }
  bool has(Part::Kind kind) const;
  /// Gradients come near the mean, equal on all ranks.
  bool is_lossy() const {
    return combine == Combine::quantized || combine == Combine::low_rank;
  }
  bool travels_narrow() const;
};

/// The scale of the losses at first.
constexpr double kFirstScale = 4;
/// Steps after which it doubles.
constexpr int kGoodSteps = 3;
/// The exchange of `Combine::switched` changes after so many passes.
constexpr int kPassesOfFirst = 2;

Program random_program(uint64_t seed);

/// What rank `rank` gives to a forward of an act: for each part its factors, or
/// rows; undefined where it leaves the part out.
std::vector<torch::Tensor> inputs_of(const Program& program,
                                     size_t act,
                                     int forward,
                                     int rank);

/// What its acts do to the module, the gradients, the wrappers and the threads
/// between steps, as words.
std::set<std::string> changes_of(const Program& program);

/// What it has of all that a program may have, as words.
std::set<std::string> kinds_of(const Program& program);

std::string describe(const Program& program);
std::string describe(const Act& act);

}  // namespace ddp::test
