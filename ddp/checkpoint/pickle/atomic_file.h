#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// The calls by which a file is replaced, in this order, and one that removes
/// it. Each returns 0, or the errno of what failed. A test replaces them by
/// ones that fail or die.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual int write(int fd, const void* data, size_t size);
  virtual int sync(int fd);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int remove(const std::string& path);
};

/// Replaces a file in one step: whoever reads, now or after a crash at any
/// point, finds the old content or the new one, whole. The content goes into
/// PATH.tmp beside it, is synced to the disk, and takes the file's name by a
/// rename, which is synced too. A symbolic link is followed, and a file that
/// was there keeps its permissions.
///
/// PATH.tmp is always a new file: one that a crash left behind is removed, and
/// a link that somebody laid there is not followed. It is locked while it is
/// written, so that of two processes that write the same file one fails instead
/// of mixing their bytes, and only its owner reads it where the file is
/// replaced.
///
/// Example:
/// @code
///   detail::AtomicFile file("model.pt");
///   file.write(data, size);
///   file.commit();  // without it, the destructor removes PATH.tmp
/// @endcode
class AtomicFile {
 public:
  /// @throws c10::Error when PATH.tmp cannot be made or another process writes
  ///   it, or PATH is there and no regular file.
  explicit AtomicFile(const std::string& path, Disk& disk = real_disk());
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends. Does not throw: after the first failure it does nothing, and
  /// `commit` throws. (LibTorch's zip writer cannot be stopped by an exception:
  /// its destructor would write again, and end the program.)
  void write(const void* data, size_t size) noexcept;

  /// Puts the new content in place of the old.
  /// @throws c10::Error with the first failure; the old content is then still
  ///   there, except when only the last step, syncing the folder, failed.
  void commit();

  static Disk& real_disk();

 private:
  void open_temporary();
  bool create_temporary();
  void remove_temporary();
  void check(int error, const char* step) const;

  Disk& disk_;
  std::string path_;
  std::string temporary_;
  std::optional<mode_t> mode_;  // of the file that is replaced
  FileDescriptor file_;
  int write_error_ = 0;
};

}  // namespace ddp::detail
