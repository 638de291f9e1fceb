#include "ddp/detail/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <c10/util/Exception.h>

namespace ddp::detail {
namespace {

/// The file that PATH is or, when it is a symbolic link, points to. (Not by
/// std::filesystem: LibTorch's wheel exports parts of another compiler's.)
std::string resolve(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return path;
  }
  TORCH_CHECK(S_ISREG(status.st_mode),
              "it is there already and is not a regular file");
  const std::unique_ptr<char, decltype(&std::free)> real(
      ::realpath(path.c_str(), nullptr), &std::free);
  return real ? real.get() : path;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

bool same_file(int fd, const std::string& path) {
  struct stat by_fd {};
  struct stat by_path {};
  return ::fstat(fd, &by_fd) == 0 && ::stat(path.c_str(), &by_path) == 0 &&
         by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev;
}

}  // namespace

int Disk::write(int fd, const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const auto count = ::write(fd, bytes, size);
    if (count < 0 && errno != EINTR) {
      return errno;
    }
    const auto written = static_cast<size_t>(std::max<ssize_t>(count, 0));
    bytes += written;
    size -= written;
  }
  return 0;
}

int Disk::sync(int fd) {
  // Some file systems cannot sync a folder, and need not.
  return ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
}

int Disk::rename(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

Disk& AtomicFile::real_disk() {
  static Disk disk;
  return disk;
}

AtomicFile::AtomicFile(const std::string& path, Disk& disk)
    : disk_(disk), path_(resolve(path)), temporary_(path_ + ".tmp") {
  open_temporary();
}

AtomicFile::~AtomicFile() {
  if (file_) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::open_temporary() {
  // Another writer may rename the file between our open and our lock: then the
  // file we locked is not a temporary one any more, and we open it anew.
  do {
    file_ = FileDescriptor(
        ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    check(file_ ? 0 : errno, "opening");
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      file_ = FileDescriptor();
      TORCH_CHECK(false, "another process is writing it");
    }
  } while (!same_file(file_.get(), temporary_));
  check(::ftruncate(file_.get(), 0) == 0 ? 0 : errno, "emptying");
}

void AtomicFile::write(const void* data, size_t size) noexcept {
  if (write_error_ == 0) {
    write_error_ = disk_.write(file_.get(), data, size);
  }
}

void AtomicFile::commit() {
  check(write_error_, "writing");
  check(disk_.sync(file_.get()), "syncing");
  check(disk_.rename(temporary_, path_), "renaming");
  file_ = FileDescriptor();
  const FileDescriptor folder(
      ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  check(folder ? disk_.sync(folder.get()) : errno, "syncing the folder of");
}

void AtomicFile::check(int error, const char* step) const {
  TORCH_CHECK(
      error == 0, step, " ", temporary_, " failed: ", std::strerror(error));
}

}  // namespace ddp::detail
