// Checkpoints of sharded models: the files of DistributedDataParallel. The
// ranks are threads.
#include <functional>
#include <string>

#include "ddp/checkpoint_folder.h"
#include "test/ddp/shard/sharded_training.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace sharded_checkpoint_test {

using test::check_equal;
using test::Elementwise;
using test::Group;
using test::Plain;
using test::run;
using test::Sharded;
using test::train_file;
using test::values_in;

TEST_CASE("shards save the file of DistributedDataParallel", "[shard]") {
  const int ranks = GENERATE(1, 2, 3);
  const auto kind = GENERATE(Elementwise::adamw,
                             Elementwise::sgd,
                             Elementwise::adagrad,
                             Elementwise::fused);
  CAPTURE(ranks, static_cast<int>(kind));
  const test::TemporaryFolder folder;
  const auto first = folder / "first.pt";
  train_file<Plain>(2, kind, "", first);
  train_file<Plain>(ranks, kind, first, folder / "plain.pt");
  train_file<Sharded>(ranks, kind, first, folder / "sharded.pt");
  check_equal(values_in(folder / "plain.pt"), values_in(folder / "sharded.pt"));
}

TEST_CASE("the file of shards goes on with any number of ranks", "[shard]") {
  const int saved = GENERATE(1, 2, 4);
  const int loaded = GENERATE(1, 2, 3, 4);
  CAPTURE(saved, loaded);
  const test::TemporaryFolder folder;
  const auto kind = Elementwise::adamw;
  train_file<Sharded>(saved, kind, "", folder / "first.pt");
  train_file<Plain>(loaded, kind, folder / "first.pt", folder / "plain.pt");
  train_file<Sharded>(loaded, kind, folder / "first.pt", folder / "sharded.pt");
  check_equal(values_in(folder / "plain.pt"), values_in(folder / "sharded.pt"));
}

TEST_CASE("a resumed rank keeps its part of the optimizer's state alone",
          "[shard]") {
  const int ranks = GENERATE(2, 3);
  const test::TemporaryFolder folder;
  const auto kind = Elementwise::adamw;
  train_file<Plain>(2, kind, "", folder / "first.pt");
  run(ranks, [&](const Group& group) {
    Sharded training(group, kind);
    training.checkpoint->load(folder / "first.pt");
    for (const auto& leaf : training.model->parameters()) {
      auto& state = training.optimizer->state();
      const auto found = state.find(leaf.unsafeGetTensorImpl());
      if (found == state.end()) {
        continue;  // a frozen parameter
      }
      const auto& adamw =
          static_cast<torch::optim::AdamWParamState&>(*found->second);
      TORCH_CHECK(adamw.exp_avg().storage().nbytes() == leaf.nbytes());
      TORCH_CHECK(adamw.exp_avg_sq().storage().nbytes() == leaf.nbytes());
    }
  });
}

TEST_CASE("a checkpoint of the module within the shards is the same",
          "[shard]") {
  const test::TemporaryFolder folder;
  run(2, [&](const Group& group) {
    Sharded training(group, Elementwise::sgd);
    training.train(0, 2);
    Checkpoint of_module(training.model->module());
    of_module.process_group(group).save(folder / "module.pt");
    Checkpoint(training.model.ptr())
        .process_group(group)
        .save(folder / "wrapper.pt");
    training.train(2, 1);
    of_module.load(folder / "wrapper.pt");
    of_module.save(folder / "again.pt");
  });
  const auto wrapper = values_in(folder / "wrapper.pt");
  check_equal(wrapper, values_in(folder / "module.pt"));
  check_equal(wrapper, values_in(folder / "again.pt"));
}

TEST_CASE("whole parameters are saved and loaded like a module", "[shard]") {
  const test::TemporaryFolder folder;
  run(2, [&](const Group& group) {
    Sharded training(group, Elementwise::sgd);
    training.train(0, 1);
    {
      const WholeParameters whole(*training.model);
      const torch::NoGradGuard no_grad;
      training.net->scale.fill_(7);
      Checkpoint checkpoint(training.net);
      checkpoint.process_group(group).save(folder / "seven.pt");
      training.net->scale.fill_(8);
      training.net->fc1->weight.zero_();
      load_state_dict(*training.net, folder / "seven.pt");
    }
    Checkpoint(training.model.ptr())
        .process_group(group)
        .save(folder / "after.pt");
  });
  const auto after = values_in(folder / "after.pt");
  check_equal(after, values_in(folder / "seven.pt"));
  CHECK(after.at("/model/scale").item<float>() == 7);
}

TEST_CASE("a checkpoint has the values of the leaves and not their rounding",
          "[shard]") {
  const test::TemporaryFolder folder;
  run(2, [&](const Group& group) {
    torch::nn::Linear net(100, 100);
    FullyShardedDataParallel model(
        net,
        FullyShardedDataParallelOptions().process_group(group).param_dtype(
            torch::kBFloat16));
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    Checkpoint checkpoint(model.ptr());
    checkpoint.process_group(group).add("optimizer", optimizer);
    const auto train = [&] {
      optimizer.zero_grad();
      model->forward(torch::ones({2, 100})).sum().backward();
      optimizer.step();
    };
    train();
    checkpoint.save(folder / "first.pt");
    train();
    checkpoint.save(folder / "expected.pt");
    train();
    checkpoint.load(folder / "first.pt");
    train();
    checkpoint.save(folder / "again.pt");
  });
  const auto first = values_in(folder / "first.pt");
  const auto& weight = first.at("/model/weight");
  CHECK(weight.scalar_type() == torch::kFloat);
  CHECK_FALSE(torch::equal(weight, weight.to(torch::kBFloat16)));
  check_equal(values_in(folder / "expected.pt"),
              values_in(folder / "again.pt"));
}

TEST_CASE("a background save has the values of its call", "[shard]") {
  const test::TemporaryFolder folder;
  run(2, [&](const Group& group) {
    Sharded training(group, Elementwise::adamw);
    training.train(0, 2);
    training.checkpoint->save(folder / "now.pt");
    CheckpointFolder saves(folder / "saves",
                           CheckpointFolderOptions().in_background(true));
    saves.save(training.checkpoint->step(1));
    training.train(2, 3);
    saves.wait();
  });
  auto expected = values_in(folder / "now.pt");
  auto values = values_in(folder / "saves/step-000000001.pt");
  expected.erase("/step");
  values.erase("/step");
  check_equal(expected, values);
}

/// A state that cannot be written.
struct Unwritable : Stateful {
  c10::IValue state_dict() const override { return torch::eye(2).to_sparse(); }
  void check_state_dict(const c10::IValue& /*state*/) const override {}
  void load_state_dict(const c10::IValue& /*state*/) override {}
};

TEST_CASE("a failed save of shards is an error of all ranks", "[shard]") {
  const auto cause = GENERATE("a folder", "a value");
  const bool in_background = GENERATE(false, true);
  CAPTURE(cause, in_background);
  const test::TemporaryFolder folder;
  run(2, [&](const Group& group) {
    Sharded training(group, Elementwise::adamw);
    training.train(0, 1);
    training.checkpoint->save(folder / "before.pt");
    auto failing = *training.checkpoint;
    Unwritable unwritable;
    std::string path = folder / "x";
    if (cause == std::string("a folder")) {
      path = folder / "none/x";
    } else {
      failing.add("unwritable", unwritable);
    }
    const auto error_of = [](const std::function<void()>& save) {
      try {
        save();
      } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string();
    };
    CheckpointFolder saves(
        path, CheckpointFolderOptions().in_background(in_background));
    const auto error = error_of([&] {
      saves.save(failing);
      saves.wait();
    });
    TORCH_CHECK(error.find("Cannot save " + path) != std::string::npos, error);
    TORCH_CHECK(!error_of([&] { failing.save(path + ".pt"); }).empty());
    training.checkpoint->save(folder / "after.pt");
  });
  check_equal(values_in(folder / "before.pt"), values_in(folder / "after.pt"));
}

TEST_CASE("a file that does not fit changes nothing", "[shard]") {
  const test::TemporaryFolder folder;
  run(2, [&](const Group& group) {
    Sharded training(group, Elementwise::sgd);
    training.train(0, 1);
    training.checkpoint->save(folder / "before.pt");
    torch::nn::Linear other(3, 3);
    Checkpoint(other.ptr()).process_group(group).save(folder / "other.pt");
    std::string error;
    try {
      training.checkpoint->load(folder / "other.pt");
    } catch (const c10::Error& thrown) {
      error = thrown.what();
    }
    TORCH_CHECK(error.find("does not fit") != std::string::npos, error);
    training.checkpoint->save(folder / "after.pt");
  });
  check_equal(values_in(folder / "before.pt"), values_in(folder / "after.pt"));
}

}  // namespace sharded_checkpoint_test
}  // namespace ddp
