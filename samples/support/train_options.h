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

/// What is trained and how hard. The default of each data set is in
/// `recipe_for`.
struct Recipe {
  ModelKind model;
  int64_t epochs;
  /// Images in one step, over all ranks or replicas. Each takes its share, so
  /// that their number changes neither the steps nor the learning rate.
  int64_t batch_size;
  double learning_rate;
};

/// Which images.
struct DataOptions {
  DatasetKind kind = DatasetKind::digits;
  std::string folder;       ///< empty: the digits that came with the program
  ImageShape shape;         ///< of synthetic images
  int64_t images = 50'000;  ///< number of synthetic images
};

/// When the training is saved, and where.
struct CheckpointOptions {
  std::string folder;  ///< empty: nowhere
  int64_t every = 0;   ///< steps between two checkpoints; 0: an epoch
  bool resume = false;
};

/// What is printed.
struct ReportOptions {
  int64_t log_every = 0;  ///< steps between two lines with the loss; 0: none
  bool print_hash = false;
};

/// All that the command line of `train` says.
struct TrainOptions {
  Mode mode = Mode::train;
  Recipe recipe;
  uint64_t seed = 0;
  bool no_dropout = false;
  DataOptions data;
  DeviceOptions device;
  Precision precision = Precision::full;  ///< of products and convolutions
  CheckpointOptions checkpoint;
  ReportOptions report;
};

/// The defaults for a data set.
Recipe recipe_for(DatasetKind kind);

/// Reads and checks the command line.
///
/// Example:
/// @code
///   const auto parsed = samples::parse_train_options(argc, argv);
/// @endcode
std::variant<TrainOptions, EarlyExit> parse_train_options(
    int argc, const char* const* argv);

/// The same for a program of one process, whose name and further options are in
/// `line`. Without what is for ranks and single steps: TrainOptions::device,
/// TrainOptions::precision, TrainOptions::report and CheckpointOptions::every.
std::variant<TrainOptions, EarlyExit> parse_train_options(
    CommandLine& line, int argc, const char* const* argv);

}  // namespace samples
