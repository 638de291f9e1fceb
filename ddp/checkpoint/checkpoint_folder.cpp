#include "ddp/checkpoint/checkpoint_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "ddp/base/atomic_folder.h"
#include "ddp/base/text/record.h"
#include "ddp/checkpoint/detail/communicator.h"
#include "ddp/checkpoint/detail/folder_plan.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/job/error_text.h"

namespace ddp {
namespace {

/// Removes obsolete checkpoints. A failure only causes a warning.
void remove_files(const std::string& folder,
                  const std::vector<std::string>& names,
                  detail::Disk& disk) {
  for (const auto& name : names) {
    const auto path = folder + "/" + name;
    // A kill may leave a part of the folder, which no load accepts.
    const int error = detail::is_folder(path)
                          ? detail::remove_folder(path, disk)
                          : disk.remove(path);
    if (error != 0 && error != ENOENT) {
      TORCH_WARN("Cannot remove ",
                 path,
                 ", which is not needed any more: ",
                 std::strerror(error));
    }
  }
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string folder,
                                   const CheckpointFolderOptions& options)
    : CheckpointFolder(
          std::move(folder), options, detail::AtomicFile::real_disk()) {}

CheckpointFolder::CheckpointFolder(std::string folder,
                                   const CheckpointFolderOptions& options,
                                   detail::Disk& disk)
    : folder_(std::move(folder)), options_(options), disk_(disk) {
  TORCH_CHECK(options_.keep_last() >= 1,
              "Expected keep_last of at least 1, but got 0");
  TORCH_CHECK(!options_.sharded() || !options_.in_background(),
              "Expected a CheckpointFolder either sharded or in the "
              "background, but got both; leave one of them out");
}

CheckpointFolder::~CheckpointFolder() {
  try {
    finish_write();
  } catch (const std::exception& error) {
    TORCH_WARN(error.what());
  }
}

void CheckpointFolder::finish_write() {
  if (!writer_.is_started()) {
    return;
  }
  TORCH_CHECK(writer_.finish(options_.timeout()),
              "Expected ",
              written_,
              " to be on the disk within ",
              options_.timeout().count(),
              " ms, but it is still being written; give "
              "CheckpointFolderOptions::timeout more, or see why the disk is "
              "slow");
  unsound_.clear();  // now replaced or removed
}

void CheckpointFolder::save(const Checkpoint& checkpoint) {
  group_ = checkpoint.group_;
  const detail::Communicator ranks(group_);
  if (options_.in_background()) {
    wait();
  }
  const auto step = checkpoint.step();
  const auto path = folder_ + "/" + detail::checkpoint_name(step);
  if (options_.sharded()) {
    std::vector<std::string> obsolete;
    ranks.run_on_all([&] {
      if (ranks.rank() == 0) {
        obsolete = prepare(path, step);
      }
    });
    checkpoint.save_sharded(path);
    remove_files(folder_, obsolete, disk_);
    unsound_.clear();
    return;
  }
  const auto value = checkpoint.collect(path, ranks);
  Checkpoint::write_on_first(
      path, value, ranks, [&] { write(path, step, value); });
}

/// Makes the folder and removes the remains of killed saves. Returns the names
/// of the checkpoints to remove after the save.
std::vector<std::string> CheckpointFolder::prepare(const std::string& path,
                                                   int64_t step) {
  return detail::explain("Cannot save " + path, [&] {
    // An error is ignored here: opening the file then fails with its reason.
    ::mkdir(folder_.c_str(), 0777);
    const auto plan = detail::plan_save(
        detail::names_in(folder_), unsound_, step, options_.keep_last());
    remove_files(folder_, plan.before, disk_);
    return plan.after;
  });
}

void CheckpointFolder::write(const std::string& path,
                             int64_t step,
                             const c10::IValue& value) {
  auto obsolete = prepare(path, step);
  auto work = detail::explain("Cannot save " + path, [&] {
    auto pickled = detail::pickle(value);
    if (options_.in_background()) {
      detail::copy_storages(pickled);
    }
    return [folder = folder_,
            &disk = disk_,
            path,
            obsolete = std::move(obsolete),
            pickled = std::move(pickled)] {
      detail::write_torch_file(path, pickled, disk);
      remove_files(folder, obsolete, disk);
    };
  });
  written_ = path;
  if (options_.in_background()) {
    writer_.start(std::move(work));
  } else {
    work();
    unsound_.clear();
  }
}

bool CheckpointFolder::load(Checkpoint& checkpoint, int64_t last_step) {
  group_ = checkpoint.group_;
  if (options_.in_background()) {
    wait();
  }
  const detail::Communicator ranks(group_);
  std::string mine;
  ranks.run_on_all([&] {
    if (ranks.rank() == 0) {
      mine = detail::join_fields(
          detail::checkpoints_in(detail::names_in(folder_)));
    }
  });
  const auto names = detail::split_fields(ranks.gather(mine)[0]).value();
  unsound_.clear();  // an earlier load may have met a disk that was not there
  std::string errors;
  for (const auto& name : names) {
    if (detail::step_of(name) > last_step) {
      unsound_.insert(name);
      continue;
    }
    const auto path = folder_ + "/" + name;
    detail::TorchFile file;
    const auto error = checkpoint.read(path, ranks, file);
    if (!error.empty()) {
      unsound_.insert(name);
      errors += (errors.empty() ? "" : "; ") + error;
      continue;
    }
    checkpoint.load(path, file, ranks);
    if (!errors.empty() && ranks.rank() == 0) {
      TORCH_WARN(
          "Loaded ", path, ", because newer checkpoints are damaged: ", errors);
    }
    return true;
  }
  if (!errors.empty()) {
    ranks.fail("Expected a sound checkpoint in " + folder_ +
               ", but none is: " + errors);
  }
  unsound_.clear();  // nothing was loaded: later checkpoints stay
  return false;
}

void CheckpointFolder::wait() {
  detail::Communicator(group_).run_on_all([this] { finish_write(); });
}

}  // namespace ddp
