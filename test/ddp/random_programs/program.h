#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddp/amp/mixed_precision.h"

namespace ddp::test {

/// One or two parameters, and their use in a forward.
struct Part {
  enum class Kind {
    plain,
    branch,   ///< a rank may leave it out, as `Unused` allows
    tied,     ///< under two names, used twice
    product,  ///< multiplied by a second parameter
    matrix,   ///< gradients have rank one
    rows,     ///< an embedding with sparse gradients
    norm,     ///< a batch norm
    frozen,   ///< when it is wrapped
    ignored   ///< by the wrapper
  };
  enum class Memory { kept, checkpointed, nested };  ///< of activations
  Kind kind = Kind::plain;
  torch::Dtype dtype = torch::kFloat;
  int64_t size = 1;
  Memory memory = Memory::kept;
};

enum class Unused { refused, found, fixed };

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
  none
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

/// The object that loads the file.
enum class File { module, wrapper, submodule, checkpoint };

/// An act of all ranks. Fields that differ between ranks are indexed by rank.
struct Act {
  enum class Kind {
    wrap,      ///< wraps the module again
    regroup,   ///< update_process_group
    train,     ///< some forwards, then one backward
    pair,      ///< trains both models, one inside the other
    gather,    ///< local passes of each rank
    evaluate,  ///< forwards without gradients
    step,      ///< optimizer step and zero_grad
    freeze,    ///< freezes or thaws a part
    load,      ///< loads a file into the module
    replace,   ///< copies parameters' memory, with set_data
    convert,   ///< all to double and back
    preset,    ///< sets `.grad` to integers that differ between ranks
    join,      ///< a Join with a number of inputs per rank
    outrun,    ///< a Join that the first rank without inputs ends
    leave,     ///< a Join that an exception ends on all ranks
    // The last act of a program:
    miss,   ///< a rank leaves out a part without permission
    spoil,  ///< a rank's gradient is not finite; a check finds it
    fail    ///< an exception leaves a rank's backward
  };
  /// A local event on rank `who` before its backward.
  enum class LocalFailure {
    none,
    in_forward,
    in_backward,
    no_backward,
    inspection
  };

  Kind kind = Kind::train;
  int model = 0;
  int wrapper = 0;           ///< 0 or 1, of the model's wrappers
  int who = 0;               ///< rank of miss, fail and hiccup
  size_t part = 0;           ///< of freeze, load, miss and is_infinite
  File file = File::module;  ///< of load
  bool in_threads = false;   ///< train: forwards and backwards in two threads
  int forwards = 1;          ///< of train; of join: per step
  int repeats = 1;           ///< of train: backwards through one graph
  LocalFailure hiccup = LocalFailure::none;  ///< after it `who` trains on
  bool is_infinite = false;                  ///< for a gradient of `who`
  std::vector<int> counts;                   ///< passes or inputs of each rank
  std::vector<double> weights;               ///< of each rank
  bool flag = false;                         ///< meaning: see the functions
  Zero zero = Zero::to_none;                 ///< of step
  double clip = 0;                           ///< largest norm, 0: no limit
  double bucket_cap_mb = 25;                 ///< of wrap
  double first_cap_mb = 1;                   ///< of wrap
  bool keeps_memory = false;                 ///< gradient_as_bucket_view
  bool syncs = true;                         ///< init_sync

  bool is_apart() const { return clip > 0; }       ///< train: one backward each
  bool by_module() const { return flag; }          ///< gather: no forward
  bool in_training() const { return flag; }        ///< evaluate: in training
  bool holds() const { return flag; }              ///< step: holds gradients
  bool by_live() const { return flag; }            ///< join: by live ranks
  bool by_wrapper() const { return flag; }         ///< load: into wrapper
  bool on_all() const { return flag; }             ///< replace, not only `who`
  bool is_dense() const { return flag; }           ///< preset: also rows
  bool steps_joined() const { return clip == 0; }  ///< join: on all ranks
  int fewest() const;                              ///< of `counts`
  int most() const;
};

/// A module, options and a training, determined by a seed. All gradients and
/// their means are integers.
struct Program {
  uint64_t seed = 0;
  int size = 1;
  int models = 1;  ///< equal, in the same group
  std::vector<Part> parts;
  Unused unused = Unused::refused;
  Combine combine = Combine::mean;
  Stepper stepper = Stepper::sgd;
  Buffers buffers = Buffers::broadcast;
  MixedPrecision precision;
  bool scales = false;  ///< uses a GradScaler
  std::vector<Act> acts;

  /// Returns whether gradients pass through an exchange. One rank has one only
  /// if the program gives it.
  bool exchanges() const { return size > 1 || combine != Combine::mean; }
  bool is_sharded() const {
    return stepper == Stepper::sharded_momentum ||
           stepper == Stepper::sharded_adam;
  }
  bool is_adam() const { return stepper >= Stepper::adam; }
  bool has(Part::Kind kind) const;
  /// Returns whether gradients only approximate the mean. They are equal on all
  /// ranks.
  bool is_lossy() const {
    return combine == Combine::quantized || combine == Combine::low_rank;
  }
  bool travels_narrow() const;
};

/// Initial scale of the losses.
constexpr double kFirstScale = 4;
/// Number of steps after which the scale doubles.
constexpr int kGoodSteps = 3;
/// Number of passes before the exchange of `Combine::switched` changes.
constexpr int kPassesOfFirst = 2;

Program random_program(uint64_t seed);

/// Returns the inputs of rank `rank` in a forward of an act: factors or row
/// indices for each part; undefined if the rank leaves the part out.
std::vector<torch::Tensor> inputs_of(const Program& program,
                                     size_t act,
                                     int forward,
                                     int rank);

/// Returns the changes that a program's acts make to the module, the gradients,
/// the wrappers and the threads between steps, as words.
std::set<std::string> changes_of(const Program& program);

/// Returns the kinds of parts, options and acts of a program, as words.
std::set<std::string> kinds_of(const Program& program);

std::string describe(const Program& program);
std::string describe(const Act& act);

}  // namespace ddp::test
