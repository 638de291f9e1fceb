#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/base/background_task.h"
#include "ddp/checkpoint/checkpoint.h"

namespace ddp {

namespace detail {
class Disk;
}

/// Options of `CheckpointFolder`.
///
/// Example:
/// @code
///   ddp::CheckpointFolder folder(
///       "checkpoints",
///       ddp::CheckpointFolderOptions().keep_last(5).in_background(true));
/// @endcode
struct CheckpointFolderOptions {
  /// How many checkpoints are kept; at least 1. The disk holds one more while
  /// one is saved.
  TORCH_ARG(size_t, keep_last) = 3;
  /// `save` copies all that it saves to host memory and returns; a thread of
  /// rank 0 writes it while the training goes on.
  TORCH_ARG(bool, in_background) = false;
  /// What `save` does while the one before is still written: wait for it, or,
  /// with false, save nothing and return false.
  TORCH_ARG(bool, wait_when_busy) = true;
  /// How long to wait for what is written in the background.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(10);
};

/// A folder that keeps the last checkpoints of a training, a file for each step
/// that one was saved at (step-000000120.pt), and loads the newest sound one.
///
/// Only rank 0 writes there; every rank reads. One training at a time writes to
/// a folder.
///
/// Thread contract: one thread a rank; `save`, `load` and `wait` are
/// collective, over the ranks of the Checkpoint.
///
/// Example:
/// @code
///   ddp::Checkpoint checkpoint(net);
///   checkpoint.optimizer(optimizer).sampler(sampler);
///   ddp::CheckpointFolder folder("checkpoints");
///   folder.load(checkpoint);  // nothing there: from the beginning
///   ...
///   checkpoint.step(checkpoint.step() + 1);
///   if (checkpoint.step() % 1000 == 0) folder.save(checkpoint);
///   ...
///   folder.wait();  // the last one is on the disk, or this throws
/// @endcode
class CheckpointFolder {
 public:
  /// @param folder  the first `save` makes it, in a folder that is there.
  explicit CheckpointFolder(std::string folder,
                            const CheckpointFolderOptions& options = {});
  /// For tests: writes by `disk`, which must outlive this.
  CheckpointFolder(std::string folder,
                   const CheckpointFolderOptions& options,
                   detail::Disk& disk);
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;
  /// Waits on rank 0, at most `timeout`, for what is written; of an error it
  /// warns.
  ~CheckpointFolder();

  /// Saves under the checkpoint's `step()`, as `Checkpoint::save`, then removes
  /// the oldest beyond `keep_last`. A failure or a kill at any point leaves the
  /// others as they were. What `load` found to be unsound is removed, too, and
  /// does not count.
  ///
  /// In the background, what fails while it is written is thrown by the next
  /// `save`, `load` or `wait`.
  ///
  /// @returns false when nothing was saved, since one was still being written.
  /// @throws c10::Error on every rank: as `Checkpoint::save`; when the folder
  ///   has a checkpoint of a later step, which would be loaded instead; when
  ///   the one before is not on the disk after `timeout`.
  bool save(const Checkpoint& checkpoint);

  /// Loads the newest checkpoint that is sound on every rank. Those that are
  /// not (cut off, damaged, unreadable on a rank) are passed over, and rank 0
  /// warns of them once.
  ///
  /// @returns false when rank 0 sees no checkpoint there; nothing is changed
  ///   then.
  /// @throws c10::Error on every rank when there are some, but none is sound,
  ///   and when the newest sound one does not fit, as `Checkpoint::load`.
  bool load(Checkpoint& checkpoint);

  /// Waits, at most `timeout`, until what was saved is on the disk.
  /// @throws c10::Error on every rank when it is not, with the reason.
  void wait();

 private:
  void write(int64_t step, const std::function<c10::IValue()>& value);
  void finish_write();

  std::string folder_;
  CheckpointFolderOptions options_;
  detail::Disk& disk_;
  c10::intrusive_ptr<c10d::Backend> group_;  // of the last save
  std::set<std::string> unsound_;            // that load has found
  std::string written_;                      // what is written, for errors
  detail::BackgroundTask writer_;
};

}  // namespace ddp
