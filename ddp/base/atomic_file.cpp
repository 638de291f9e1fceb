#include "ddp/base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace ddp::detail {
namespace {

void expect(bool condition, const std::string& problem) {
  if (!condition) {
    throw std::runtime_error(problem);
  }
}

/// Returns the path of the file to replace.
std::string resolve(const std::string& path) {
  struct stat status {};
  expect(::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode),
         "it is there already and is not a regular file");
  return real_path(path);
}

std::optional<mode_t> mode_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0
             ? std::optional<mode_t>(status.st_mode & 07777)
             : std::nullopt;
}

bool same_file(int fd, const std::string& path) {
  struct stat by_fd {};
  struct stat by_path {};
  return ::fstat(fd, &by_fd) == 0 && ::lstat(path.c_str(), &by_path) == 0 &&
         by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev;
}

/// Locks the file for writing. File systems without locks are accepted.
void lock_file(int fd) {
  expect(::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
         "another process is writing it");
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
  // Some file systems cannot sync a folder, and do not need it.
  return ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
}

int Disk::rename(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int Disk::exchange(const std::string& one, const std::string& other) {
  const int result = ::renameat2(
      AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
  return result == 0 ? 0 : errno;
}

int Disk::remove(const std::string& path) {
  return ::unlink(path.c_str()) == 0 ? 0 : errno;
}

int Disk::sync_folder(const std::string& path) {
  const FileDescriptor folder(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder ? sync(folder.get()) : errno;
}

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(
      ::realpath(path.c_str(), nullptr), &std::free);
  return real ? real.get() : path;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

Disk& AtomicFile::real_disk() {
  static Disk disk;
  return disk;
}

AtomicFile::AtomicFile(const std::string& path, Disk& disk)
    : disk_(disk),
      path_(resolve(path)),
      temporary_(path_ + ".tmp"),
      mode_(mode_of(path_)) {
  open_temporary();
}

AtomicFile::~AtomicFile() {
  if (file_) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::open_temporary() {
  while (!create_temporary()) {
    remove_temporary();
  }
}

/// Returns false, without a change, if there is already a file of that name.
bool AtomicFile::create_temporary() {
  FileDescriptor created(
      ::open(temporary_.c_str(),
             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
             mode_ ? 0600 : 0666));
  if (!created) {
    check(errno == EEXIST ? 0 : errno, "opening");
    return false;
  }
  lock_file(created.get());
  // Another writer may have removed the file between open and lock.
  if (!same_file(created.get(), temporary_)) {
    return false;
  }
  file_ = std::move(created);
  return true;
}

/// Removes a temporary file that a crash left behind. Locks it first: it might
/// be a file that another writer has just created.
void AtomicFile::remove_temporary() {
  const FileDescriptor found(::open(
      temporary_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  const int error = found ? 0 : errno;
  if (error == ENOENT) {
    return;
  }
  const auto in_the_way =
      temporary_ + " is there already and is not a regular file; remove it";
  expect(error != ELOOP, in_the_way);
  check(error, "opening");
  struct stat status {};
  check(::fstat(found.get(), &status) == 0 ? 0 : errno, "opening");
  expect(S_ISREG(status.st_mode), in_the_way);
  lock_file(found.get());
  if (same_file(found.get(), temporary_)) {
    check(::unlink(temporary_.c_str()) == 0 ? 0 : errno, "removing");
  }
}

void AtomicFile::write(const void* data, size_t size) noexcept {
  if (write_error_ == 0) {
    write_error_ = disk_.write(file_.get(), data, size);
  }
}

void AtomicFile::commit() {
  check(write_error_, "writing");
  if (mode_) {
    check(::fchmod(file_.get(), *mode_) == 0 ? 0 : errno,
          "setting the permissions of");
  }
  check(disk_.sync(file_.get()), "syncing");
  check(disk_.rename(temporary_, path_), "renaming");
  file_ = FileDescriptor();
  check(disk_.sync_folder(folder_of(path_)), "syncing the folder of");
}

void AtomicFile::check(int error, const char* step) const {
  if (error != 0) {
    throw std::system_error(
        error, std::generic_category(), step + (" " + temporary_) + " failed");
  }
}

}  // namespace ddp::detail
