#include "samples/train_options.h"

#include <map>

namespace samples {
namespace {

const std::map<std::string, Mode> kModes{{"train", Mode::train},
                                         {"test", Mode::test}};
const std::map<std::string, DatasetKind> kDatasets{
    {"digits", DatasetKind::digits},
    {"mnist", DatasetKind::mnist},
    {"cifar10", DatasetKind::cifar10},
    {"synthetic", DatasetKind::synthetic}};
const std::map<std::string, ModelKind> kModels{
    {"cnn", ModelKind::small_cnn}, {"resnet18", ModelKind::resnet18}};
const std::map<std::string, Precision> kPrecisions{{"none", Precision::full},
                                                   {"bf16", Precision::bf16},
                                                   {"fp16", Precision::fp16}};

// Values of the command line, before the data set's recipe fills in the missing
// ones.
struct Given {
  TrainOptions options;
  std::optional<ModelKind> model;
  std::optional<int64_t> epochs;
  std::optional<int64_t> batch_size;
  std::optional<double> learning_rate;
  std::optional<int64_t> images;
  std::vector<int64_t> image_shape;
};

void add_training(CommandLine& line, Given& given) {
  line.choose("--mode",
              given.options.mode,
              kModes,
              "train: test after each epoch; test: only test a checkpoint");
  line.choose("--model",
              given.model,
              kModels,
              "Network (cnn; resnet18 for cifar10 and synthetic)");
  line.add("--epochs",
           given.epochs,
           "Epochs (digits 20, mnist 10, cifar10 30, synthetic 1)")
      .at_least(1);
  line.add("--batch-size",
           given.batch_size,
           "Images a step, of which each rank takes its share (64; cifar10 and "
           "synthetic 128)")
      .at_least(1);
  line.add("--lr",
           given.learning_rate,
           "Learning rate at the start, from where it falls to 0 along a "
           "cosine (0.05; cifar10 0.1)")
      .above_zero();
  line.add("--accumulate",
           given.options.accumulate,
           "Parts of a rank's images in a step, whose gradients add up before "
           "the ranks average them")
      .at_least(1);
  line.add("--clip-norm",
           given.options.clip_norm,
           "Greatest norm of the averaged gradients (0: any)")
      .at_least(0);
  line.add("--seed",
           given.options.seed,
           "Of parameters, order and dropout; rank r draws from seed + r")
      .at_least(0);
  line.add("--no-dropout",
           given.options.no_dropout,
           "Without dropout, whose random numbers each number of ranks draws "
           "otherwise");
}

void add_data(CommandLine& line, Given& given) {
  auto& data = given.options.data;
  line.choose("--dataset",
              data.kind,
              kDatasets,
              "Images (digits); synthetic is random, for speed only");
  line.add("--data",
           data.folder,
           "Folder with the official binary files of mnist or cifar10, or with "
           "digits.csv");
  line.add("--image-shape",
           given.image_shape,
           "Channels, height, width of synthetic images (3,32,32)")
      .count(3)
      .at_least(1);
  line.add("--images", given.images, "Synthetic training images (50000)")
      .at_least(1);
}

void add_checkpoint(CommandLine& line, CheckpointOptions& checkpoint) {
  line.add("--checkpoint",
           checkpoint.folder,
           "Folder for the last three checkpoints, one saved each epoch");
  line.add("--resume",
           checkpoint.resume,
           "Go on from the newest checkpoint, if there is one")
      .needs("--checkpoint");
}

void add_steps(CommandLine& line, TrainOptions& options) {
  line.choose("--amp",
              options.precision,
              kPrecisions,
              "Mixed precision (none): products in bf16, or in fp16 with a "
              "gradient scaler");
  line.add("--graph",
           options.graph,
           "Record a step as one CUDA graph and launch it for each batch, on a "
           "GPU")
      .excludes("--accumulate")
      .excludes("--clip-norm");
  line.add("--checkpoint-every",
           options.checkpoint.every,
           "Save each so many steps, too (0: no)")
      .at_least(0)
      .needs("--checkpoint");
  line.add("--log-every",
           options.report.log_every,
           "Print the loss, averaged over ranks, each so many steps (0: no)")
      .at_least(0);
  line.add("--print-hash",
           options.report.print_hash,
           "Every rank prints a hash of its parameters at the end");
}

// Returns an error about a combination of options, or "".
std::string find_error(const Given& given) {
  const auto& options = given.options;
  const bool is_synthetic = options.data.kind == DatasetKind::synthetic;
  const bool has_folder = !options.data.folder.empty();
  if (options.data.kind != DatasetKind::digits && has_folder == is_synthetic) {
    return "Expected --data with --dataset mnist and cifar10, none with "
           "synthetic.";
  }
  if (!is_synthetic && (given.images || !given.image_shape.empty())) {
    return "Expected --images and --image-shape only with --dataset synthetic.";
  }
  if (options.mode == Mode::test && options.checkpoint.folder.empty()) {
    return "Expected --checkpoint with --mode test, but got none.";
  }
  if (options.graph && options.precision == Precision::fp16) {
    return "Expected --amp bf16 or none with --graph, but got fp16.";
  }
  if (options.device.no_cuda && options.device.backend == "nccl") {
    return "Expected gloo with --no-cuda, but got --backend nccl.";
  }
  return "";
}

TrainOptions complete(const Given& given) {
  TrainOptions options = given.options;
  auto& recipe = options.recipe;
  recipe = recipe_for(options.data.kind);
  recipe.model = given.model.value_or(recipe.model);
  recipe.epochs = given.epochs.value_or(recipe.epochs);
  recipe.batch_size = given.batch_size.value_or(recipe.batch_size);
  recipe.learning_rate = given.learning_rate.value_or(recipe.learning_rate);
  options.data.images = given.images.value_or(options.data.images);
  if (!given.image_shape.empty()) {
    options.data.shape = {
        given.image_shape[0], given.image_shape[1], given.image_shape[2]};
  }
  return options;
}

}  // namespace

Recipe recipe_for(DatasetKind kind) {
  switch (kind) {
    case DatasetKind::mnist:
      return {ModelKind::small_cnn, 10, 64, 0.05};
    case DatasetKind::cifar10:
      return {ModelKind::resnet18, 30, 128, 0.1};
    case DatasetKind::synthetic:
      return {ModelKind::resnet18, 1, 128, 0.05};
    default:
      return {ModelKind::small_cnn, 20, 64, 0.05};
  }
}

std::variant<TrainOptions, EarlyExit> parse_train_options(
    int argc, const char* const* argv) {
  CommandLine line(
      "train",
      "Trains a network on images, on as many ranks as the launcher starts: "
      "train, or ddprun --nproc-per-node=4 train.");
  Given given;
  add_training(line, given);
  add_data(line, given);
  add_device_options(line, given.options.device);
  add_checkpoint(line, given.options.checkpoint);
  add_steps(line, given.options);
  if (const auto exit = line.parse(argc, argv)) {
    return *exit;
  }
  if (const auto error = find_error(given); !error.empty()) {
    return line.refuse(error);
  }
  return complete(given);
}

}  // namespace samples
