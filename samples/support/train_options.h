#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "samples/support/command_line.h"
#include "samples/support/devices.h"
#include "samples/support/images.h"

namespace samples {

enum class Mode { train, test };
enum class DatasetKind { digits, mnist, cifar10, synthetic };
enum class ModelKind { small_cnn, resnet18 };
enum class Precision { full, bf16, fp16 };

/// Network and hyperparameters of a training. `recipe_for` has the defaults of
/// each data set.
struct Recipe {
  ModelKind model;
  int64_t epochs;
  /// Images in one step, over all ranks or replicas. Each rank or replica
  /// processes its share, so their number changes neither the number of steps
  /// nor the learning rate.
  int64_t batch_size;
  double learning_rate;
};

/// Selection of the images.
struct DataOptions {
  DatasetKind kind = DatasetKind::digits;
  std::string folder;       ///< empty: the digits that came with the program
  ImageShape shape;         ///< shape of synthetic images
  int64_t images = 50'000;  ///< number of synthetic images
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

/// Same as above, for a single-process program, whose name and further options
/// are in `line`. Omits the options for ranks and single steps:
/// TrainOptions::device, TrainOptions::precision, TrainOptions::report and
/// CheckpointOptions::every.
std::variant<TrainOptions, EarlyExit> parse_train_options(
    CommandLine& line, int argc, const char* const* argv);

}  // namespace samples
