#pragma once

#include <string>
#include <vector>

#include "ddp/base/atomic_file.h"

// Includes no LibTorch.
namespace ddp::detail {

/// Returns the names in a folder; empty if the folder does not exist.
/// @throws std::system_error if the folder cannot be read.
std::vector<std::string> names_in(const std::string& folder);

/// Returns whether there is a folder of this name.
bool is_folder(const std::string& path);

/// Removes a folder of files. Returns 0, also if there is none, or the errno of
/// the first failure.
int remove_folder(const std::string& folder, Disk& disk);

/// Replaces a folder of files atomically: a reader, now or after a crash at any
/// point, finds either the complete old or the complete new folder. The new
/// folder is PATH.tmp until `commit`. The caller syncs the files in it.
/// A symbolic link is followed.
///
/// Example:
/// @code
///   detail::AtomicFolder folder("model", is_mine);
///   write_files(folder.temporary());
///   folder.commit();  // without it, the destructor removes PATH.tmp
/// @endcode
class AtomicFolder {
 public:
  /// Creates PATH.tmp. Removes a PATH.tmp that a crash has left.
  /// @param is_own  returns whether a file of this name may be removed.
  /// @throws std::system_error if PATH.tmp cannot be created;
  ///   std::runtime_error if PATH or PATH.tmp has other files.
  AtomicFolder(const std::string& path,
               bool (*is_own)(const std::string& name),
               Disk& disk = AtomicFile::real_disk());
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  /// Removes PATH.tmp: after `commit`, the old folder.
  ~AtomicFolder();

  const std::string& temporary() const { return temporary_; }

  /// Replaces the old folder by the new one.
  /// @throws std::system_error with the first failure. The old folder is then
  ///   still there, unless only the last step, syncing its parent, failed.
  ///   std::runtime_error if there is an old folder and the file system cannot
  ///   exchange two folders.
  void commit();

 private:
  Disk& disk_;
  const std::string path_;
  const std::string temporary_;
  bool is_kept_ = false;  // PATH.tmp, by the destructor
};

}  // namespace ddp::detail
