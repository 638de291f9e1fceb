#include "ddp/checkpoint_folder.h"

#include <condition_variable>
#include <mutex>

#include <torch/nn.h>

#include "ddp/checkpoint/detail/folder_plan.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/temporary_folder.h"
#include "test/support/warnings.h"
#include "test/support/watched_disk.h"

namespace checkpoint_folder_test {

using Catch::Contains;
using ddp::Checkpoint;
using ddp::CheckpointFolder;
using ddp::CheckpointFolderOptions;
using ddp::test::Group;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::Warnings;
using ddp::test::WatchedDisk;
using ddp::test::write_file;
using Names = std::vector<std::string>;

/// A model with weights that equal its step.
struct Training {
  Training() : checkpoint(net) { set(0); }
  explicit Training(const Group& group) : Training() {
    checkpoint.process_group(group);
  }

  void set(int64_t step) {
    torch::NoGradGuard no_grad;
    net->weight.fill_(static_cast<double>(step));
    checkpoint.step(step);
  }
  /// Returns the step, or -1 if the weights differ from it.
  int64_t step() const {
    const bool is_whole = net->weight.eq(checkpoint.step()).all().item<bool>();
    return is_whole ? checkpoint.step() : -1;
  }

  torch::nn::Linear net{3, 2};
  Checkpoint checkpoint;
};

void save_steps(CheckpointFolder& folder,
                Training& training,
                const std::vector<int64_t>& steps) {
  for (const auto step : steps) {
    training.set(step);
    folder.save(training.checkpoint);
  }
}

std::string file_of(const TemporaryFolder& folder, int64_t step) {
  return folder / ddp::detail::checkpoint_name(step);
}

void cut_off(const std::string& path) {
  write_file(path, read_file(path).substr(0, 100));
}

/// Returns the loaded step, 0 if the folder has no checkpoint.
int64_t loaded_step(const std::string& folder) {
  Training training;
  CheckpointFolder(folder).load(training.checkpoint);
  return training.step();
}

TEST_CASE("A folder's plan keeps the last checkpoints", "[checkpoint_folder]") {
  using ddp::detail::checkpoint_name;
  using ddp::detail::plan_save;
  CHECK(checkpoint_name(120) == "step-000000120.pt");
  CHECK(checkpoint_name(12345678901) == "step-12345678901.pt");
  const Names files{".",
                    "step-000000003.pt",
                    "step-000000020.pt",
                    "step-12345678901.pt",
                    "step-7.pt",
                    "step-000000020.pt.tmp",
                    "step--00000001.pt",
                    "step-.pt",
                    "step-00000000x.pt",
                    "notes.tmp",
                    "best.pt"};
  CHECK(ddp::detail::checkpoints_in(files) ==
        Names{"step-12345678901.pt", "step-000000020.pt", "step-000000003.pt"});
  const auto next = [&](size_t keep_last,
                        const std::set<std::string>& unsound) {
    return plan_save(files, unsound, 12345678902, keep_last);
  };
  CHECK(next(2, {}).before == Names{"step-000000020.pt.tmp"});
  CHECK(next(4, {}).after.empty());
  CHECK(next(2, {}).after == Names{"step-000000020.pt", "step-000000003.pt"});
  CHECK(next(1, {}).after.size() == 3);
  CHECK(next(2, {"step-12345678901.pt"}).after ==
        Names{"step-12345678901.pt", "step-000000003.pt"});
  CHECK(plan_save(files, {"step-12345678901.pt"}, 20, 2).after ==
        Names{"step-12345678901.pt"});
  CHECK_THROWS_WITH(plan_save(files, {}, 20, 2),
                    Contains("expected a step after those in the folder, but "
                             "got step 20 and there is step-12345678901.pt"));
  CHECK_THROWS_WITH(plan_save({}, {}, -1, 2), Contains("but got -1"));
}

TEST_CASE("A folder keeps the last checkpoints and loads the newest",
          "[checkpoint_folder]") {
  const TemporaryFolder parent;
  const auto path = parent / "checkpoints";
  CHECK(loaded_step(path) == 0);
  Training training;
  CheckpointFolder folder(path, CheckpointFolderOptions().keep_last(2));
  CHECK_FALSE(folder.load(training.checkpoint));
  save_steps(folder, training, {1, 5, 9, 10});
  CHECK(loaded_step(path) == 10);
  save_steps(folder, training, {10});  // saves the same step again
  const Names expected{path + "/step-000000009.pt",
                       path + "/step-000000010.pt"};
  CHECK(ddp::test::files_in(path) == expected);
  training.set(8);
  CHECK_THROWS_WITH(folder.save(training.checkpoint),
                    Contains("got step 8 and there is step-000000010.pt"));
  CHECK(ddp::test::files_in(path) == expected);
  CHECK_THROWS_WITH(
      CheckpointFolder(path, CheckpointFolderOptions().keep_last(0)),
      Contains("keep_last of at least 1"));
  CHECK_THROWS_WITH(
      CheckpointFolder(
          path, CheckpointFolderOptions().sharded(true).in_background(true)),
      Contains("either sharded or in the background"));
}

TEST_CASE("The newest sound checkpoint is loaded", "[checkpoint_folder]") {
  const TemporaryFolder folder;
  Training training;
  CheckpointFolder checkpoints(folder.path(),
                               CheckpointFolderOptions().keep_last(3));
  save_steps(checkpoints, training, {1, 2, 3});
  cut_off(file_of(folder, 3));
  write_file(file_of(folder, 2), "");
  const Warnings warnings;
  Training resumed;
  CHECK(checkpoints.load(resumed.checkpoint));
  CHECK(resumed.step() == 1);
  REQUIRE(warnings.texts().size() == 1);
  CHECK_THAT(
      warnings.texts()[0],
      Contains("Loaded " + file_of(folder, 1)) &&
          Contains("Cannot load " + file_of(folder, 3) + ": it is cut off") &&
          Contains("Cannot load " + file_of(folder, 2)));
  // Damaged files do not disturb a save and are not counted.
  save_steps(checkpoints, resumed, {2});
  CHECK(ddp::test::files_in(folder.path()) ==
        Names{file_of(folder, 1), file_of(folder, 2)});
  save_steps(checkpoints, resumed, {3, 4});
  CHECK(ddp::test::files_in(folder.path()) ==
        Names{file_of(folder, 2), file_of(folder, 3), file_of(folder, 4)});
}

TEST_CASE("A folder goes back to a step", "[checkpoint_folder]") {
  const TemporaryFolder path;
  Training training;
  CheckpointFolder folder(path.path());
  save_steps(folder, training, {1, 2, 4});
  CHECK_FALSE(folder.load(training.checkpoint, 0));
  CHECK(training.step() == 4);
  CHECK_THROWS_WITH(save_steps(folder, training, {3}),
                    Contains("there is step-000000004.pt"));
  REQUIRE(folder.load(training.checkpoint, 3));
  CHECK(training.step() == 2);
  save_steps(folder, training, {3});
  CHECK(loaded_step(path.path()) == 3);
}

TEST_CASE("A folder without a sound checkpoint is an error",
          "[checkpoint_folder]") {
  const TemporaryFolder folder;
  Training training;
  CheckpointFolder checkpoints(folder.path());
  save_steps(checkpoints, training, {1, 2});
  cut_off(file_of(folder, 1));
  cut_off(file_of(folder, 2));
  CHECK_THROWS_WITH(
      checkpoints.load(training.checkpoint),
      Contains("Expected a sound checkpoint in " + folder.path()) &&
          Contains(file_of(folder, 1) + ": it is cut off") &&
          Contains(file_of(folder, 2) + ": it is cut off"));
  CHECK(training.step() == 2);
}

TEST_CASE("A checkpoint that can be read again is kept",
          "[checkpoint_folder]") {
  const TemporaryFolder folder;
  Training training;
  CheckpointFolder checkpoints(folder.path());
  save_steps(checkpoints, training, {1, 2});
  const auto contents =
      std::pair(read_file(file_of(folder, 1)), read_file(file_of(folder, 2)));
  cut_off(file_of(folder, 1));
  cut_off(file_of(folder, 2));
  CHECK_THROWS(checkpoints.load(training.checkpoint));
  write_file(file_of(folder, 1), contents.first);
  write_file(file_of(folder, 2), contents.second);
  CHECK(checkpoints.load(training.checkpoint));
  CHECK(training.step() == 2);
  save_steps(checkpoints, training, {3});
  CHECK(ddp::test::files_in(folder.path()) ==
        Names{file_of(folder, 1), file_of(folder, 2), file_of(folder, 3)});
}

TEST_CASE("A sound checkpoint that does not fit is no reason to go back",
          "[checkpoint_folder]") {
  const TemporaryFolder folder;
  Training training;
  CheckpointFolder checkpoints(folder.path());
  save_steps(checkpoints, training, {1});
  torch::nn::Linear other(5, 2);
  checkpoints.save(Checkpoint(other).step(2));
  CHECK_THROWS_WITH(checkpoints.load(training.checkpoint),
                    Contains("Cannot load " + file_of(folder, 2) +
                             R"(: in "model": it does not fit the module)"));
}

TEST_CASE("All ranks load the same checkpoint of a folder",
          "[checkpoint_folder]") {
  // Each rank has its own folder, as on hosts without a shared disk.
  const std::vector<TemporaryFolder> folders(3);
  const auto load = [&](const Group& group) {
    Training training(group);
    CheckpointFolder folder(folders[group->getRank()].path());
    const bool found = folder.load(training.checkpoint);
    return std::pair(found, training.step());
  };
  for (const auto& folder : folders) {
    torch::manual_seed(3);  // same contents on all ranks
    Training training;
    CheckpointFolder checkpoints(folder.path());
    save_steps(checkpoints, training, {1, 2, 3, 4});
  }
  // Each rank lacks another file: step 4 is damaged on rank 1, step 3 is
  // missing on rank 2, and later step 2 has other contents on rank 1.
  cut_off(file_of(folders[1], 4));
  std::remove(file_of(folders[2], 3).c_str());
  ddp::test::run_ranks(3, [&](const Group& group) {
    TORCH_CHECK(load(group) == std::pair(true, int64_t{2}));
  });
  Training other;
  other.set(2);
  other.checkpoint.epoch(7).save(file_of(folders[1], 2));
  for (const auto& error : ddp::test::try_ranks(3, load)) {
    CHECK_THAT(error,
               Contains("Expected a sound checkpoint") &&
                   Contains("rank 1: Cannot load") &&
                   Contains("rank 0 and rank 1 see different files"));
  }
  ddp::test::run_ranks(2, [&](const Group& group) {
    Training training(group);
    TORCH_CHECK(
        !CheckpointFolder(folders[0] / "none").load(training.checkpoint));
  });
}

TEST_CASE("Ranks save to a folder together", "[checkpoint_folder]") {
  const TemporaryFolder parent;
  const std::string kind = GENERATE("file", "background", "sharded");
  CAPTURE(kind);
  const auto path = parent / "checkpoints";
  const auto options = CheckpointFolderOptions()
                           .keep_last(2)
                           .in_background(kind == "background")
                           .sharded(kind == "sharded");
  ddp::test::run_ranks(3, [&](const Group& group) {
    Training training(group);
    CheckpointFolder folder(path, options);
    save_steps(folder, training, {1, 2, 3});
    Training resumed(group);
    TORCH_CHECK(folder.load(resumed.checkpoint));
    TORCH_CHECK(resumed.step() == 3);
  });
  CHECK(ddp::test::files_in(path).size() == 2);
  for (const auto& error : ddp::test::try_ranks(3, [&](const Group& group) {
         Training training(group);
         CheckpointFolder folder(parent / "no/folder", options);
         save_steps(folder, training, {1});
         folder.wait();
       })) {
    CHECK_THAT(error,
               Contains("rank 0: Cannot save") &&
                   Contains("No such file or directory"));
  }
}

/// A gate that blocks a disk's steps until the test opens it.
class Gate {
 public:
  void open() {
    const std::scoped_lock lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }
  /// Returns 0, or ETIMEDOUT if the gate stays closed.
  int pass() {
    std::unique_lock lock(mutex_);
    return opened_.wait_for(
               lock, std::chrono::seconds(60), [this] { return is_open_; })
               ? 0
               : ETIMEDOUT;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

CheckpointFolderOptions in_background() {
  return CheckpointFolderOptions().in_background(true);
}

TEST_CASE("The training goes on while a checkpoint is written",
          "[checkpoint_folder]") {
  const TemporaryFolder folder;
  Gate gate;
  WatchedDisk disk([&](int) { return gate.pass(); });
  Training training;
  CheckpointFolder checkpoints(folder.path(), in_background(), disk);
  save_steps(checkpoints, training, {1});
  training.set(2);  // not in the checkpoint being written
  gate.open();
  checkpoints.wait();
  CHECK(loaded_step(folder.path()) == 1);
  checkpoints.save(training.checkpoint);
  checkpoints.wait();
  CHECK(loaded_step(folder.path()) == 2);
}

TEST_CASE("A save waits for the one before", "[checkpoint_folder]") {
  const TemporaryFolder folder;
  Training training;
  {
    CheckpointFolder checkpoints(folder.path(), in_background().keep_last(1));
    save_steps(checkpoints, training, {1, 2, 3, 4, 5});
  }  // the destructor waits, too
  CHECK(ddp::test::files_in(folder.path()) == Names{file_of(folder, 5)});
  CHECK(loaded_step(folder.path()) == 5);
}

TEST_CASE("The next call throws an error of the background save",
          "[checkpoint_folder]") {
  const TemporaryFolder folder;
  bool is_full = false;
  WatchedDisk disk([&](int) { return is_full ? ENOSPC : 0; });
  Training training;
  CheckpointFolder checkpoints(folder.path(), in_background(), disk);
  save_steps(checkpoints, training, {1});
  checkpoints.wait();
  const auto error = "Cannot save " + file_of(folder, 2);
  const auto fail = [&] {
    is_full = true;
    save_steps(checkpoints, training, {2});
  };
  fail();
  CHECK_THROWS_WITH(checkpoints.save(training.checkpoint),
                    Contains(error) && Contains("No space left on device"));
  fail();
  CHECK_THROWS_WITH(checkpoints.load(training.checkpoint), Contains(error));
  fail();
  CHECK_THROWS_WITH(checkpoints.wait(), Contains(error));
  checkpoints.wait();  // reported once
  CHECK(loaded_step(folder.path()) == 1);
  is_full = false;
  save_steps(checkpoints, training, {2});
  checkpoints.wait();
  CHECK(loaded_step(folder.path()) == 2);
  const Warnings warnings;
  {
    is_full = true;
    CheckpointFolder ended(folder.path(), in_background(), disk);
    save_steps(ended, training, {3});
  }
  REQUIRE(warnings.texts().size() == 1);
  CHECK_THAT(warnings.texts()[0], Contains(file_of(folder, 3)));
}

TEST_CASE("Waiting for a disk ends", "[checkpoint_folder]") {
  const TemporaryFolder folder;
  Gate gate;
  WatchedDisk disk([&](int) { return gate.pass(); });
  Training training;
  CheckpointFolder checkpoints(
      folder.path(),
      in_background().timeout(std::chrono::milliseconds(1)),
      disk);
  save_steps(checkpoints, training, {1});
  CHECK_THROWS_WITH(checkpoints.wait(),
                    Contains("Expected " + file_of(folder, 1) +
                             " to be on the disk within 1 ms"));
  CHECK_THROWS_WITH(checkpoints.save(training.checkpoint),
                    Contains("still being written"));
  gate.open();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool is_written = false;
  while (!is_written && std::chrono::steady_clock::now() < end) {
    try {
      checkpoints.wait();
      is_written = true;
    } catch (const c10::Error&) {
      // Still being written.
    }
  }
  REQUIRE(is_written);
}

}  // namespace checkpoint_folder_test
