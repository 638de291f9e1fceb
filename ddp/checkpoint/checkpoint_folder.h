#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/base/background_task.h"
#include "ddp/checkpoint/checkpoint.h"

namespace ddp {

namespace detail {
class Disk;
}

/// Options of `CheckpointFolder`; the same on all ranks, which do not compare
/// them.
///
/// Example:
/// @code
///   ddp::CheckpointFolder folder(
///       "checkpoints",
///       ddp::CheckpointFolderOptions().keep_last(5).in_background(true));
/// @endcode
struct CheckpointFolderOptions {
  /// Number of checkpoints to keep; at least 1. During a save the disk holds
  /// one more.
  TORCH_ARG(size_t, keep_last) = 3;
  /// Whether `save` only copies the data to host memory and returns, while a
  /// thread of rank 0 writes the file and the training goes on. The next `save`
  /// waits until the file is on the disk.
  TORCH_ARG(bool, in_background) = false;
  /// Whether each checkpoint is a folder, into which all ranks write at the
  /// same time: for large models of type `FullyShardedDataParallel`. See
  /// `Checkpoint::save_sharded`. Not together with `in_background`.
  TORCH_ARG(bool, sharded) = false;
  /// Maximum time to wait for a background write. The other ranks wait for rank
  /// 0 in a collective, so the group's time-out must be longer.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(10);
};

/// Keeps the last checkpoints of a training in a folder, one file per saved
/// step (step-000000120.pt), and loads the newest valid checkpoint. With
/// `sharded` a folder has the name of the file.
///
/// Without `sharded` only rank 0 writes to the folder; every rank reads. Only
/// one training at a time may write to a folder.
///
/// Thread contract: one thread per rank. `save` and `load` are collective over
/// the ranks of the Checkpoint, and `wait` over the ranks of the last `save` or
/// `load` (before both, over all ranks).
///
/// Example:
/// @code
///   ddp::Checkpoint checkpoint(net);
///   checkpoint.add("optimizer", optimizer).add("sampler", sampler);
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
  /// @param folder  created by the first `save` if its parent folder exists.
  /// @throws c10::Error if `keep_last` is 0, or for `sharded` together with
  ///   `in_background`.
  explicit CheckpointFolder(std::string folder,
                            const CheckpointFolderOptions& options = {});
  /// For tests: writes with `disk`, which must outlive this object.
  CheckpointFolder(std::string folder,
                   const CheckpointFolderOptions& options,
                   detail::Disk& disk);
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;
  /// Waits on rank 0, at most `timeout`, for a background write, and prints an
  /// error as a warning.
  ~CheckpointFolder();

  /// Saves under the checkpoint's `step()` like `Checkpoint::save`, then
  /// removes the oldest checkpoints beyond `keep_last`, and temporary files
  /// that a killed save has left. A second save of a step replaces its file, or
  /// its folder if the file system can exchange two folders (NFS cannot). A
  /// failure or a kill at any point leaves the other checkpoints unchanged.
  /// Checkpoints that the last `load` found to be invalid are removed too, and
  /// do not count.
  ///
  /// An error of a background write is thrown by the next `save`, `load` or
  /// `wait`.
  ///
  /// @throws c10::Error on every rank: as `Checkpoint::save`; if the step is
  ///   negative; if the folder has a checkpoint of a later step, which `load`
  ///   would prefer; if the previous checkpoint is not on the disk after
  ///   `timeout`.
  void save(const Checkpoint& checkpoint);

  /// Loads the newest checkpoint of at most `last_step` that is valid on every
  /// rank. Later checkpoints then count as invalid: `save` accepts an earlier
  /// step and removes them. Skips invalid checkpoints (truncated, damaged,
  /// unreadable on a rank, not the same file on all ranks); rank 0 then prints
  /// one warning. First waits for a write in the background, as `wait` does.
  ///
  /// @returns false, without any change, if rank 0 finds no checkpoint of at
  ///   most `last_step` in the folder.
  /// @throws c10::Error on every rank if there are checkpoints but none is
  ///   valid, if the newest valid one does not fit, as `Checkpoint::load`, if
  ///   the Checkpoint has an optimizer without its model and the newest one is
  ///   a folder, if rank 0 cannot read the folder, or as `wait`.
  bool load(Checkpoint& checkpoint,
            int64_t last_step = std::numeric_limits<int64_t>::max());

  /// Waits, at most `timeout`, until the saved checkpoint is on the disk.
  /// @throws c10::Error on every rank, with the reason, if it is not.
  void wait();

 private:
  std::vector<std::string> prepare(const std::string& path, int64_t step);
  void write(const std::string& path, int64_t step, const c10::IValue& value);
  void finish_write();

  std::string folder_;
  CheckpointFolderOptions options_;
  detail::Disk& disk_;
  c10::intrusive_ptr<c10d::Backend> group_;  // of the last save or load
  std::set<std::string> unsound_;  // names of files that the last load skipped
  std::string written_;            // path of the last write, for errors
  detail::BackgroundTask writer_;
};

}  // namespace ddp
