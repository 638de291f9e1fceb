#include "samples/support/train_options.h"

#include <CLI/CLI.hpp>
#include <map>

#include "samples/support/command_line.h"

namespace samples {
namespace {

constexpr int kUsageError = 2;
constexpr int64_t kMost = int64_t{1} << 40;

const std::map<std::string, Mode> kModes{{"train", Mode::train},
                                         {"test", Mode::test}};
const std::map<std::string, DatasetKind> kDatasets{
    {"digits", DatasetKind::digits},
    {"mnist", DatasetKind::mnist},
    {"cifar10", DatasetKind::cifar10},
    {"synthetic", DatasetKind::synthetic}};
const std::map<std::string, ModelKind> kModels{
    {"cnn", ModelKind::small_cnn}, {"resnet18", ModelKind::resnet18}};

// What the command line says before the data set's recipe fills the gaps.
struct Given {
  TrainOptions options;
  std::optional<ModelKind> model;
  std::optional<int64_t> epochs;
  std::optional<int64_t> batch_size;
  std::optional<double> learning_rate;
  std::optional<int64_t> images;
  std::vector<int64_t> image_shape;
};

// An option that takes one of a few names.
template <typename Target, typename Kind>
CLI::Option* add_choice(CLI::App& app,
                        const std::string& flag,
                        Target& target,
                        const std::map<std::string, Kind>& kinds,
                        const std::string& help) {
  std::string names;
  for (const auto& [name, kind] : kinds) {
    names += (names.empty() ? "" : "|") + name;
  }
  const auto choose = [=, &target, &kinds](const std::string& name) {
    const auto found = kinds.find(name);
    if (found == kinds.end()) {
      throw CLI::ValidationError(
          flag, "Expected " + names + ", but got " + name + ".");
    }
    target = found->second;
  };
  return app.add_option_function<std::string>(flag, choose, help)
      ->type_name(names);
}

void add_training(CLI::App& app, Given& given) {
  add_choice(app,
             "--mode",
             given.options.mode,
             kModes,
             "train: test after each epoch; test: only test a checkpoint");
  add_choice(app,
             "--model",
             given.model,
             kModels,
             "Network (cnn; resnet18 for cifar10 and synthetic)");
  app.add_option("--epochs",
                 given.epochs,
                 "Epochs (digits 20, mnist 10, cifar10 30, synthetic 1)")
      ->check(CLI::Range(int64_t{1}, kMost));
  app.add_option("--batch-size",
                 given.batch_size,
                 "Images a step, of which each rank or replica takes its share "
                 "(64; cifar10 and synthetic 128)")
      ->check(CLI::Range(int64_t{1}, kMost));
  app.add_option("--lr",
                 given.learning_rate,
                 "Learning rate at the start, from where it falls to 0 along a "
                 "cosine (0.05; cifar10 0.1)")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed",
                 given.options.seed,
                 "Of parameters, order and dropout; rank r draws from seed + r "
                 "(0)")
      ->check(CLI::NonNegativeNumber);
}

void add_data(CLI::App& app, Given& given) {
  auto& data = given.options.data;
  add_choice(app,
             "--dataset",
             data.kind,
             kDatasets,
             "Images (digits); synthetic is random, for speed only");
  app.add_option("--data",
                 data.folder,
                 "Folder with the official binary files of mnist or cifar10, "
                 "or with digits.csv");
  app.add_option("--image-shape",
                 given.image_shape,
                 "Channels, height, width of synthetic images (3,32,32)")
      ->delimiter(',')
      ->expected(3)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  app.add_option("--images", given.images, "Synthetic training images (50000)")
      ->check(CLI::Range(int64_t{1}, kMost));
}

void add_checkpoint(CLI::App& app, CheckpointOptions& checkpoint) {
  auto* folder = app.add_option("--checkpoint",
                                checkpoint.folder,
                                "Folder for checkpoint.pt, saved each epoch");
  app.add_flag("--resume",
               checkpoint.resume,
               "Go on from the checkpoint, if there is one")
      ->needs(folder);
}

void add_checkpoint_every(CLI::App& app, CheckpointOptions& checkpoint) {
  app.add_option(
         "--checkpoint-every", checkpoint.every, "Save each so many steps, too")
      ->check(CLI::Range(int64_t{1}, kMost))
      ->needs("--checkpoint");
}

void add_report(CLI::App& app, ReportOptions& report) {
  app.add_option("--log-every",
                 report.log_every,
                 "Print the loss, averaged over ranks, each so many steps")
      ->check(CLI::Range(int64_t{1}, kMost));
  app.add_flag("--print-hash",
               report.print_hash,
               "Every rank prints a hash of its parameters at the end");
}

// What no single option can tell.
void check(const Given& given) {
  const auto& options = given.options;
  const auto expect = [](bool holds, const std::string& message) {
    if (!holds) {
      throw CLI::ValidationError(message);
    }
  };
  const auto kind = options.data.kind;
  const bool is_synthetic = kind == DatasetKind::synthetic;
  const bool has_folder = !options.data.folder.empty();
  expect(kind == DatasetKind::digits || has_folder != is_synthetic,
         "Expected --data with --dataset mnist and cifar10, none with "
         "synthetic.");
  expect(is_synthetic || (!given.images && given.image_shape.empty()),
         "Expected --images and --image-shape only with --dataset synthetic.");
  expect(options.mode == Mode::train || !options.checkpoint.folder.empty(),
         "Expected --checkpoint with --mode test, but got none.");
  expect(!options.device.no_cuda || options.device.backend != "nccl",
         "Expected gloo with --no-cuda, but got --backend nccl.");
}

TrainOptions complete(const Given& given) {
  check(given);
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

std::variant<TrainOptions, EarlyExit> parse(CLI::App& app,
                                            const Given& given,
                                            int argc,
                                            const char* const* argv) {
  try {
    app.parse(argc, argv);
    return complete(given);
  } catch (const CLI::CallForHelp&) {
    return EarlyExit{0, app.help()};
  } catch (const CLI::ParseError& error) {
    return EarlyExit{
        kUsageError,
        app.get_name() + ": " + error.what() + " --help lists the options.\n"};
  }
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
  CLI::App app(
      "Trains a network on images, on as many ranks as the launcher starts: "
      "train, or ddprun --nproc-per-node=4 train.",
      "train");
  Given given;
  add_training(app, given);
  add_data(app, given);
  add_device_options(app, given.options.device);
  add_checkpoint(app, given.options.checkpoint);
  add_checkpoint_every(app, given.options.checkpoint);
  add_report(app, given.options.report);
  return parse(app, given, argc, argv);
}

std::variant<TrainOptions, EarlyExit> parse_train_options(
    CLI::App& app, int argc, const char* const* argv) {
  Given given;
  add_training(app, given);
  add_data(app, given);
  add_checkpoint(app, given.options.checkpoint);
  return parse(app, given, argc, argv);
}

}  // namespace samples
