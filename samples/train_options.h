#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "samples/support/command_line.h"
#include "samples/support/datasets.h"
#include "samples/support/devices.h"
#include "samples/support/models.h"

namespace samples {

enum class Mode { train, test };
enum class Precision { full, bf16, fp16 };

/// Network and hyperparameters of a training. `recipe_for` has the defaults of
/// each data set.
struct Recipe {
  ModelKind model;
  int64_t epochs;
  /// Images in one step, over all ranks. Each rank processes its share, so the
  /// number of ranks changes neither the number of steps nor the learning rate.
  int64_t batch_size;
  double learning_rate;
};

/// Frequency and folder of checkpoints.
struct CheckpointOptions {
  std::string folder;  ///< empty: no checkpoints
  int64_t every = 0;   ///< steps between two checkpoints; 0: one per epoch
  bool resume = false;
};

/// Selection of the output.
struct ReportOptions {
  int64_t log_every = 0;  ///< steps between two lines with the loss; 0: none
  bool print_hash = false;
};

/// All options of the command line of `train`.
struct TrainOptions {
  Mode mode = Mode::train;
  Recipe recipe;
  uint64_t seed = 0;
  bool no_dropout = false;
  int64_t accumulate = 1;  ///< parts of a rank's images in one step
  double clip_norm = 0;    ///< greatest norm of the gradients; 0: any
  bool graph = false;      ///< steps as one CUDA graph
  DataOptions data;
  DeviceOptions device;
  /// Dtype of products and convolutions.
  Precision precision = Precision::full;
  CheckpointOptions checkpoint;
  ReportOptions report;
};

/// Returns the defaults for a data set.
Recipe recipe_for(DatasetKind kind);

/// Reads and checks the command line.
///
/// Example:
/// @code
///   const auto parsed = samples::parse_train_options(argc, argv);
/// @endcode
std::variant<TrainOptions, EarlyExit> parse_train_options(
    int argc, const char* const* argv);

}  // namespace samples
