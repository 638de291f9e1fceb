// Contents of a checkpoint folder after an interrupted save.
#include <array>
#include <cerrno>
#include <csignal>
#include <random>

#include <torch/nn.h>

#include "ddp/checkpoint/detail/folder_plan.h"
#include "ddp/checkpoint_folder.h"
#include "test/support/catch.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"
#include "test/support/warnings.h"
#include "test/support/watched_disk.h"

namespace checkpoint_kills_test {

using ddp::Checkpoint;
using ddp::CheckpointFolder;
using ddp::CheckpointFolderOptions;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::WatchedDisk;
using ddp::test::write_file;

constexpr int64_t kOlder = 2;
constexpr int64_t kNewest = 3;

/// A disk that does not wait for writes to reach it.
class QuickDisk : public ddp::detail::Disk {
 public:
  int sync(int /*fd*/) override { return 0; }
};

CheckpointFolderOptions keep_two() {
  return CheckpointFolderOptions().keep_last(2);
}

/// Returns a module with weights that equal `step`.
torch::nn::Linear net_of(int64_t step) {
  torch::nn::Linear net(2, 2);
  torch::NoGradGuard no_grad;
  net->weight.fill_(static_cast<double>(step));
  return net;
}

void save(const std::string& folder, int64_t step, ddp::detail::Disk& disk) {
  const auto net = net_of(step);
  CheckpointFolder(folder, keep_two(), disk).save(Checkpoint(net).step(step));
}

void save(const std::string& folder, int64_t step) {
  QuickDisk disk;
  save(folder, step, disk);
}

/// Returns the step of the loaded checkpoint, -1 if it is not complete.
int64_t load(const std::string& folder) {
  const auto net = net_of(0);
  Checkpoint checkpoint(net);
  REQUIRE(CheckpointFolder(folder).load(checkpoint));
  const bool is_whole = net->weight.eq(checkpoint.step()).all().item<bool>();
  return is_whole ? checkpoint.step() : -1;
}

/// Returns the number of disk steps of a complete save.
int steps_of_a_save() {
  const TemporaryFolder folder;
  for (const int64_t step : {1, 2}) {
    save(folder.path(), step);
  }
  WatchedDisk disk([](int) { return 0; });
  save(folder.path(), kNewest, disk);
  return disk.steps();
}

/// Fills the folder as before a save: two checkpoints and a file that a kill
/// has left.
void prepare(const TemporaryFolder& folder) {
  for (const int64_t step : {int64_t{1}, kOlder}) {
    save(folder.path(), step);
  }
  write_file(folder / "step-000000002.pt.tmp", "cut off");
}

/// Checks that the next save succeeds and leaves only two checkpoints.
void check_next_save(const TemporaryFolder& folder) {
  save(folder.path(), kNewest + 1);
  CHECK(load(folder.path()) == kNewest + 1);
  CHECK(folder.size() == 2);
}

TEST_CASE("A save that is killed at any step leaves the older checkpoints",
          "[checkpoint_kills]") {
  const int steps = steps_of_a_save();
  REQUIRE(steps > 10);
  int64_t last = kOlder;
  for (int kill = 0; kill <= steps; ++kill) {
    CAPTURE(kill);
    const TemporaryFolder folder;
    prepare(folder);
    const int status = ddp::test::status_of_child([&] {
      WatchedDisk disk(
          [kill](int step) { return step == kill ? ::raise(SIGKILL) : 0; });
      save(folder.path(), kNewest, disk);
    });
    CHECK(WIFSIGNALED(status));
    const auto found = load(folder.path());
    CHECK(found >= last);  // the new one after some step
    last = found;
    check_next_save(folder);
  }
  CHECK(last == kNewest);
}

TEST_CASE("A disk that fails at any step leaves the older checkpoints",
          "[checkpoint_kills]") {
  const int steps = steps_of_a_save();
  const std::array errors{ENOSPC, EIO, EDQUOT, EROFS};
  for (int bad = 0; bad <= steps; ++bad) {
    const int error = errors[static_cast<size_t>(bad) % errors.size()];
    CAPTURE(bad, error);
    const TemporaryFolder folder;
    prepare(folder);
    const ddp::test::Warnings warnings;  // of files that remain
    WatchedDisk disk([&](int step) { return step == bad ? error : 0; });
    bool is_told = false;
    try {
      save(folder.path(), kNewest, disk);
    } catch (const c10::Error&) {
      is_told = true;
    }
    CHECK(is_told + warnings.texts().size() == 1);
    const auto found = load(folder.path());
    // If the save throws, the newest checkpoint is complete only if the last
    // step, syncing the folder, failed.
    CHECK((found == kNewest || (found == kOlder && is_told)));
    check_next_save(folder);
  }
}

TEST_CASE("A newest checkpoint that is damaged anywhere is passed over",
          "[checkpoint_kills]") {
  const TemporaryFolder folder;
  prepare(folder);
  save(folder.path(), kNewest);
  const auto path = folder / ddp::detail::checkpoint_name(kNewest);
  const auto whole = read_file(path);
  const ddp::test::Warnings warnings;
  std::mt19937 random(1);
  size_t passed_over = 0;
  for (int i = 0; i < 200; ++i) {
    CAPTURE(i);
    auto damaged = whole;
    const size_t at = random() % whole.size();
    if (i % 2 == 0) {
      damaged.resize(at);
    } else {
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    }
    write_file(path, damaged);
    const auto found = load(folder.path());
    // Damage to bytes without a check sum (padding) is harmless.
    CHECK((found == kOlder || (found == kNewest && i % 2 == 1)));
    passed_over += found == kOlder ? 1 : 0;
  }
  CHECK(passed_over > 100);
  CHECK(warnings.texts().size() == passed_over);
}

}  // namespace checkpoint_kills_test
