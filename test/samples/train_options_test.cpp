#include "samples/train_options.h"

#include "samples/support/text.h"
#include "test/support/catch.h"

using namespace samples;

namespace train_options_test {

std::variant<TrainOptions, EarlyExit> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "train");
  return parse_train_options(static_cast<int>(words.size()), words.data());
}

TrainOptions accept(const std::vector<const char*>& words) {
  const auto parsed = parse(words);
  const auto* exit = std::get_if<EarlyExit>(&parsed);
  INFO((exit ? exit->text : ""));
  REQUIRE(exit == nullptr);
  return std::get<TrainOptions>(parsed);
}

// Returns the error's text. Checks that it is one line, with exit code 2.
std::string refuse(const std::vector<const char*>& words) {
  const auto parsed = parse(words);
  const auto* exit = std::get_if<EarlyExit>(&parsed);
  REQUIRE(exit != nullptr);
  CHECK(exit->code == 2);
  CHECK(exit->text.find('\n') == exit->text.size() - 1);
  return exit->text;
}

ddp::WorkerEnv local_env(int rank, int world) {
  ddp::WorkerEnv env;
  env.rank = env.local_rank = rank;
  env.world_size = env.local_world_size = world;
  return env;
}

TEST_CASE("without options, the digits are trained on") {
  const auto options = accept({});
  CHECK(options.mode == Mode::train);
  CHECK(options.data.kind == DatasetKind::digits);
  CHECK(options.data.folder.empty());
  CHECK(options.recipe.model == ModelKind::small_cnn);
  CHECK(options.recipe.epochs == 20);
  CHECK(options.recipe.batch_size == 64);
  CHECK(options.recipe.learning_rate == 0.05);
  CHECK(options.seed == 0);
  CHECK_FALSE(options.no_dropout);
  CHECK(options.precision == Precision::full);
  CHECK_FALSE(options.graph);
  CHECK_FALSE(options.device.backend.has_value());
  CHECK_FALSE(options.device.no_cuda);
  CHECK(options.checkpoint.folder.empty());
  CHECK_FALSE(options.checkpoint.resume);
}

TEST_CASE("every option reaches its place") {
  const auto options = accept({"--dataset",
                               "synthetic",
                               "--image-shape",
                               "1,9,12",
                               "--images",
                               "100",
                               "--model",
                               "cnn",
                               "--epochs",
                               "3",
                               "--batch-size",
                               "16",
                               "--lr",
                               "0.25",
                               "--seed",
                               "18446744073709551615",
                               "--no-dropout",
                               "--backend",
                               "gloo",
                               "--gpus",
                               "2,0",
                               "--checkpoint",
                               "here",
                               "--checkpoint-every",
                               "5",
                               "--resume",
                               "--amp",
                               "fp16",
                               "--log-every",
                               "2",
                               "--print-hash"});
  CHECK(options.data.kind == DatasetKind::synthetic);
  CHECK(options.data.shape.channels == 1);
  CHECK(options.data.shape.height == 9);
  CHECK(options.data.shape.width == 12);
  CHECK(options.data.images == 100);
  CHECK(options.recipe.model == ModelKind::small_cnn);
  CHECK(options.recipe.epochs == 3);
  CHECK(options.recipe.batch_size == 16);
  CHECK(options.recipe.learning_rate == 0.25);
  CHECK(options.seed == UINT64_MAX);
  CHECK(options.no_dropout);
  CHECK(options.device.backend == "gloo");
  CHECK(options.device.gpus == std::vector<int>{2, 0});
  CHECK(options.checkpoint.folder == "here");
  CHECK(options.precision == Precision::fp16);
  CHECK(options.checkpoint.every == 5);
  CHECK(options.checkpoint.resume);
  CHECK(options.report.log_every == 2);
  CHECK(options.report.print_hash);
}

TEST_CASE("a recorded step") {
  CHECK(accept({"--graph", "--amp", "bf16"}).graph);
}

TEST_CASE("CIFAR-10 brings its own recipe, and the command line wins") {
  const auto options = accept({"--dataset", "cifar10", "--data", "there"});
  CHECK(options.data.folder == "there");
  CHECK(options.recipe.model == ModelKind::resnet18);
  CHECK(options.recipe.batch_size == 128);
  CHECK(options.recipe.learning_rate == 0.1);
  const auto other = accept(
      {"--lr=0.2", "--model=cnn", "--dataset", "cifar10", "--data", "there"});
  CHECK(other.recipe.learning_rate == 0.2);
  CHECK(other.recipe.model == ModelKind::small_cnn);
  CHECK(other.recipe.batch_size == 128);
}

TEST_CASE("what cannot be meant is refused in one line") {
  using Catch::Contains;
  CHECK_THAT(refuse({"--epochs", "0"}), Contains("--epochs"));
  CHECK_THAT(refuse({"--epochs", "many"}), Contains("--epochs"));
  CHECK_THAT(refuse({"--batch-size", "-1"}), Contains("--batch-size"));
  CHECK_THAT(refuse({"--lr", "0"}), Contains("--lr"));
  CHECK_THAT(refuse({"--seed", "-1"}), Contains("--seed"));
  CHECK_THAT(refuse({"--amp", "fp8"}), Contains("--amp"));
  CHECK_THAT(refuse({"--dataset", "imagenet"}),
             Contains("Expected cifar10|digits|mnist|synthetic, but got "
                      "imagenet"));
  CHECK_THAT(refuse({"--mode", "play"}), Contains("Expected test|train"));
  CHECK_THAT(refuse({"--backend", "mpi"}), Contains("--backend"));
  CHECK_THAT(refuse({"--image-shape", "3,32"}), Contains("--image-shape"));
  CHECK_THAT(refuse({"--unknown"}), Contains("--unknown"));
  CHECK_THAT(refuse({"stray"}), Contains("stray"));
  CHECK_THAT(refuse({"--resume"}), Contains("--checkpoint"));
  CHECK_THAT(refuse({"--checkpoint-every", "3"}), Contains("--checkpoint"));
  CHECK_THAT(refuse({"--mode", "test"}), Contains("--checkpoint"));
  CHECK_THAT(refuse({"--dataset", "mnist"}), Contains("--data"));
  CHECK_THAT(refuse({"--no-cuda", "--backend", "nccl"}), Contains("gloo"));
  CHECK_THAT(refuse({"--no-cuda", "--gpus", "0"}), Contains("--gpus"));
  CHECK_THAT(refuse({"--graph", "--accumulate", "2"}),
             Contains("--accumulate"));
  CHECK_THAT(refuse({"--graph", "--clip-norm", "1"}), Contains("--clip-norm"));
  CHECK_THAT(refuse({"--graph", "--amp", "fp16"}), Contains("bf16 or none"));
  CHECK_THAT(refuse({"--images", "3"}), Contains("--dataset synthetic"));
  CHECK_THAT(refuse({"--image-shape", "1,2,3"}),
             Contains("--dataset synthetic"));
  CHECK_THAT(refuse({"--dataset", "synthetic", "--data", "x"}),
             Contains("--data"));
}

TEST_CASE("help is no error and names the options") {
  const auto parsed = parse({"--help"});
  const auto& exit = std::get<EarlyExit>(parsed);
  CHECK(exit.code == 0);
  for (const auto* flag : {"--mode", "--dataset", "--gpus", "--resume"}) {
    CHECK_THAT(exit.text, Catch::Contains(flag));
  }
}

TEST_CASE("process_group_options: the backend and the rank's own GPU") {
  DeviceOptions options;
  auto made = process_group_options(options, local_env(1, 2), 0);
  CHECK_FALSE(made.backend().has_value());
  CHECK_FALSE(made.device().has_value());
  CHECK(made.worker_env()->rank == 1);

  options.gpus = {3, 1};
  CHECK(process_group_options(options, local_env(0, 2), 4).device() ==
        c10::Device(c10::kCUDA, 3));
  CHECK(process_group_options(options, local_env(1, 2), 4).device() ==
        c10::Device(c10::kCUDA, 1));

  made = process_group_options(
      DeviceOptions{std::nullopt, {}, true}, local_env(0, 1), 4);
  CHECK(made.backend() == "gloo");
  CHECK(made.device() == c10::Device(c10::kCPU));
}

TEST_CASE("process_group_options: GPUs that cannot be") {
  const auto choose = [](const std::vector<int>& gpus, int ranks, int count) {
    return process_group_options(
        DeviceOptions{std::nullopt, gpus, false}, local_env(0, ranks), count);
  };
  CHECK_THROWS_WITH(choose({0, 1}, 1, 4),
                    Catch::Contains("for each of 1 ranks on this host, but "
                                    "got 0,1. Start one rank a GPU with "
                                    "ddprun --nproc-per-node=2."));
  CHECK_THROWS_WITH(choose({0}, 2, 4), Catch::Contains("each of 2 ranks"));
  CHECK_THROWS_WITH(choose({1, 1}, 2, 4), Catch::Contains("different ids"));
  CHECK_THROWS_WITH(choose({4}, 1, 4),
                    Catch::Contains("ids below 4") && Catch::Contains("got 4"));
  CHECK_THROWS_WITH(choose({-1}, 1, 4), Catch::Contains("but got -1"));
}

TEST_CASE("a count with its word") {
  CHECK(count_of(0, "rank") == "0 ranks");
  CHECK(count_of(1, "rank") == "1 rank");
  CHECK(count_of(2, "rank") == "2 ranks");
}

TEST_CASE("format is printf into a string") {
  CHECK(format("%d/%s %.9g", 3, "x", 0.1) == "3/x 0.1");
  CHECK(format("%s", std::string(5000, 'a').c_str()).size() == 5000);
}

}  // namespace train_options_test
