#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// The system calls that replace a file or a folder, in this order, and one
/// that removes a file. Each returns 0 or the errno of the failure. Tests
/// override them with calls that fail or end the process.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual int write(int fd, const void* data, size_t size);
  virtual int sync(int fd);
  virtual int rename(const std::string& from, const std::string& to);
  /// Exchanges two names; EINVAL or ENOSYS if the file system cannot.
  virtual int exchange(const std::string& one, const std::string& other);
  virtual int remove(const std::string& path);
  /// Opens a folder and calls `sync`.
  int sync_folder(const std::string& path);
};

/// Returns the target of a symbolic link, or PATH itself. (Does not use
/// std::filesystem, because LibTorch's wheel exports parts of another
/// compiler's std::filesystem.)
std::string real_path(const std::string& path);

/// Returns the folder that holds a file or folder, for system calls.
std::string folder_of(const std::string& path);

/// Replaces a file atomically: a reader, now or after a crash at any point,
/// finds either the complete old or the complete new content. The content is
/// written to PATH.tmp in the same folder, synced to the disk and renamed to
/// the file's name; the rename is synced too. A symbolic link is followed, and
/// an existing file keeps its permissions.
///
/// PATH.tmp is always a new file: a file left behind by a crash is removed, and
/// a symbolic link of that name is not followed. PATH.tmp is locked while it is
/// written: if two processes write the same file, one of them fails instead of
/// mixing their bytes. While an existing file is being replaced, only the owner
/// can read PATH.tmp.
///
/// Example:
/// @code
///   detail::AtomicFile file("model.pt");
///   file.write(data, size);
///   file.commit();  // without it, the destructor removes PATH.tmp
/// @endcode
class AtomicFile {
 public:
  /// @throws std::system_error if PATH.tmp cannot be created;
  ///   std::runtime_error if another process writes it, or PATH exists and is
  ///   no regular file.
  explicit AtomicFile(const std::string& path, Disk& disk = real_disk());
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Removes PATH.tmp unless `commit` has renamed it.
  ~AtomicFile();

  /// Appends bytes. Does not throw: after the first failure it does nothing,
  /// and `commit` throws. (LibTorch's zip writer cannot handle an exception:
  /// its destructor would write again and end the program.)
  void write(const void* data, size_t size) noexcept;

  /// Replaces the old content by the new content.
  /// @throws std::system_error with the first failure. The old content is then
  ///   still there, unless only the last step, syncing the folder, failed.
  void commit();

  /// Returns the disk that makes the real system calls.
  static Disk& real_disk();

 private:
  void open_temporary();
  bool create_temporary();
  void remove_temporary();
  void check(int error, const char* step) const;

  Disk& disk_;
  std::string path_;
  std::string temporary_;
  std::optional<mode_t> mode_;  // of the replaced file
  FileDescriptor file_;
  int write_error_ = 0;
};

}  // namespace ddp::detail
