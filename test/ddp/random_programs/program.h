#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddp/options.h"
#include "test/support/exchange_ways.h"

namespace ddp::test {

/// One or two parameters of the module, and the way in which a forward uses
/// them.
struct Part {
  enum class Kind {
    plain,
    branch,   ///< a rank may leave the parameter out, as `Unused` allows
    tied,     ///< one parameter with two names, used twice in a forward
    product,  ///< two parameters, multiplied by each other
    matrix,   ///< a matrix with gradients of rank one
    rows,     ///< an embedding with sparse gradients
    norm,     ///< a batch norm
    frozen,   ///< requires no gradient when the module is wrapped
    ignored,  ///< in the wrapper's params_and_buffers_to_ignore
    silent    ///< a rank may leave the gradient undefined
  };
  /// Activations are kept for the backward pass, or the part runs within one or
  /// two nested calls of checkpoint_activations.
  enum class Memory { kept, checkpointed, nested };
  Kind kind = Kind::plain;
  torch::Dtype dtype = torch::kFloat;
  int64_t size = 1;
  Memory memory = Memory::kept;
};

/// Treatment of parameters without a gradient: an error,
/// find_unused_parameters, or static_graph.
enum class Unused { refused, found, fixed };

/// The optimizer.
enum class Stepper {
  sgd,
  momentum,
  fused_momentum,
  sharded_momentum,
  adam,
  fused_adam,
  sharded_adam
};

/// Synchronisation of buffers: none, a copy from rank 0, or the mean over
/// ranks.
enum class Buffers { own, broadcast, averaged };

/// Treatment of gradients after an optimizer step.
enum class Zero { keep, to_none, to_zero };

/// The object into which an act loads a file.
enum class File { module, wrapper, submodule, checkpoint };

/// An action that all ranks perform. Each field that is a vector has one
/// element for each rank.
struct Act {
  enum class Kind {
    wrap,      ///< wrap the module again
    regroup,   ///< call update_process_group
    train,     ///< run some forwards and then one backward
    pair,      ///< train both models; the pass of one runs inside the other
    gather,    ///< run passes under a NoSyncGuard, in any number on each rank
    evaluate,  ///< run forwards without gradients
    step,      ///< step the optimizer and treat the gradients as `zero` says
    freeze,    ///< change requires_grad of a part
    load,      ///< load a file into the module
    replace,   ///< give parameters copies of their memory, by set_data
    convert,   ///< convert the module to double and back
    preset,    ///< set `.grad` to integers that differ between ranks
    join,      ///< train in a Join, with any number of inputs on each rank
    outrun,    ///< train in a Join that the first rank without inputs ends
    leave,     ///< train in a Join that an exception ends on all ranks
    // Errors, each the last act of a program:
    miss,  ///< a rank leaves out a part although the options forbid it
    fail   ///< the backward of a rank throws
  };
  /// A failure or an extra pass on rank `rank` alone, before its backward: an
  /// exception in a forward or in a backward, a forward without a backward, or
  /// torch::autograd::grad of a loss.
  enum class LocalFailure {
    none,
    in_forward,
    in_backward,
    no_backward,
    inspection
  };

  Kind kind = Kind::train;
  int model = 0;
  int wrapper = 0;  ///< index of one of the model's two wrappers
  int rank = 0;     ///< of miss, fail, replace, local_failure and is_infinite
  size_t part = 0;  ///< the part of freeze, load, miss, is_infinite
  File file = File::module;  ///< of load
  bool in_threads = false;   ///< train: forwards and backwards in two threads
  int forwards = 1;          ///< train: number; join: number for each step
  int repeats = 1;           ///< train: number of backwards of each loss
  LocalFailure local_failure = LocalFailure::none;  ///< `rank` continues
  bool is_infinite = false;   ///< a gradient of `rank` has inf
  std::vector<int> counts;    ///< numbers of passes or inputs
  bool flag = false;          ///< its meaning: see the functions below
  Zero zero = Zero::to_none;  ///< of step
  double clip = 0;            ///< step: largest norm of gradients; 0: no limit
  double bucket_cap_mb = 25;  ///< of wrap
  double first_cap_mb = 1;    ///< of wrap
  bool keeps_memory = false;  ///< of wrap: gradient_as_bucket_view
  bool syncs = true;          ///< of wrap: init_sync

  /// train: each forward has its own backward; otherwise the losses are added.
  bool is_apart() const { return clip > 0; }
  /// gather: the module computes instead of the wrapper.
  bool by_module() const { return flag; }
  /// evaluate: the module is in training mode.
  bool in_training() const { return flag; }
  /// step: the program keeps the gradients, which must not change afterwards.
  bool holds() const { return flag; }
  /// join: the mean is over the ranks with inputs.
  bool by_live() const { return flag; }
  /// load: the checkpoint contains the wrapper instead of the module.
  bool by_wrapper() const { return flag; }
  /// replace: on all ranks instead of on `rank` alone.
  bool on_all() const { return flag; }
  /// preset: gradients of embeddings are dense.
  bool is_dense() const { return flag; }
  /// join: ranks without inputs also step their optimizers.
  bool steps_joined() const { return clip == 0; }
  /// Returns the smallest of `counts`.
  int fewest() const;
  /// Returns the largest of `counts`.
  int most() const;
};

/// Tensors that an act compares in addition to buffers and notes.
struct Compared {
  bool parameters = true;
  bool gradients = true;
};

/// A module, options and a training, determined by a seed. Gradients and their
/// means are integers.
struct Program {
  uint64_t seed = 0;
  int size = 1;
  int models = 1;  ///< number of equal models, which share the group
  std::vector<Part> parts;
  Unused unused = Unused::refused;
  /// The wrappers are FullyShardedDataParallel instead of
  /// DistributedDataParallel.
  bool shards_model = false;
  /// The ranks share no memory and gather the shards, so all of them run the
  /// same parts, forwards and passes.
  bool gathers_shards = false;
  const ExchangeWay* way = nullptr;  ///< of the wrappers; null: their default
  Stepper stepper = Stepper::sgd;
  Buffers buffers = Buffers::broadcast;
  MixedPrecision precision;
  bool scales = false;  ///< uses a GradScaler
  std::vector<Act> acts;

  /// Returns whether gradients pass through an exchange. A world of one rank
  /// has an exchange only if the program sets one.
  bool exchanges() const { return size > 1 || way != nullptr; }
  bool shards_optimizer() const {
    return stepper == Stepper::sharded_momentum ||
           stepper == Stepper::sharded_adam;
  }
  bool is_adam() const { return stepper >= Stepper::adam; }
  bool has(Part::Kind kind) const;
  /// Returns the tensors that an act compares. Sharded ranks read parameters
  /// and gradients by collectives. Some acts do not compare them, so that only
  /// the wrapper makes ranks wait for each other.
  Compared compared(size_t act) const;
  ExchangeWay::Result result() const {
    return way == nullptr ? ExchangeWay::Result::mean : way->result;
  }
  /// Returns whether gradients only approximate the mean. They are still equal
  /// on all ranks.
  bool is_lossy() const { return way != nullptr && way->is_lossy(); }
  /// Returns whether the exchange changes the gradients of matrices alone.
  bool only_matrices() const { return way != nullptr && way->only_matrices; }
  /// Returns whether gradients are sent in a narrower dtype than float.
  bool travels_narrow() const;
};

/// Initial scale of the losses.
constexpr double kFirstScale = 4;
/// Number of steps after which the scale doubles.
constexpr int kGoodSteps = 3;

Program random_program(uint64_t seed);

/// Returns the inputs of a rank in a forward of an act, one for each part: a
/// factor or row indices; undefined if the rank leaves out the part or its
/// gradient.
std::vector<torch::Tensor> inputs_of(const Program& program,
                                     size_t act,
                                     int forward,
                                     int rank);

/// Returns the names of the changes that a program's acts make to the module,
/// the gradients, the wrappers and the threads between steps.
std::set<std::string> changes_of(const Program& program);

/// Returns the names of a program's kinds of parts, options and acts.
std::set<std::string> kinds_of(const Program& program);

std::string describe(const Program& program);
std::string describe(const Act& act);

}  // namespace ddp::test
