#include "ddp/base/atomic_folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace ddp::detail {
namespace {

[[noreturn]] void throw_error(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

/// Returns the target of a symbolic link, or PATH without slashes at its end.
std::string resolve_folder(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  const std::unique_ptr<char, decltype(&std::free)> real(
      ::realpath(path.c_str(), nullptr), &std::free);
  return real ? real.get() : path;
}

void check_names(const std::string& folder,
                 bool (*is_own)(const std::string& name)) {
  for (const auto& name : names_in(folder)) {
    if (!is_own(name)) {
      throw std::runtime_error(folder + " has another file, \"" + name +
                               "\"; choose a folder that does not exist");
    }
  }
}

void remove_folder(const std::string& folder, Disk& disk) {
  for (const auto& name : names_in(folder)) {
    if (const int error = disk.remove(folder + "/" + name)) {
      throw_error(error, "removing " + folder + "/" + name + " failed");
    }
  }
  if (::rmdir(folder.c_str()) != 0 && errno != ENOENT) {
    throw_error(errno, "removing " + folder + " failed");
  }
}

void sync_folder(const std::string& folder, Disk& disk) {
  const FileDescriptor opened(
      ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (const int error = opened ? disk.sync(opened.get()) : errno) {
    throw_error(error, "syncing " + folder + " failed");
  }
}

}  // namespace

std::vector<std::string> names_in(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(folder.c_str()),
                                                   ::closedir);
  if (!opened && errno != ENOENT) {
    throw_error(errno, "Cannot read " + folder);
  }
  std::vector<std::string> names;
  while (const auto* entry = opened ? ::readdir(opened.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") {
      names.push_back(name);
    }
  }
  return names;
}

AtomicFolder::AtomicFolder(const std::string& path,
                           bool (*is_own)(const std::string& name),
                           Disk& disk)
    : disk_(disk), path_(resolve_folder(path)), temporary_(path_ + ".tmp") {
  check_names(path_, is_own);
  check_names(temporary_, is_own);
  remove_folder(temporary_, disk_);
  if (::mkdir(temporary_.c_str(), 0777) != 0) {
    throw_error(errno, "creating " + temporary_ + " failed");
  }
}

AtomicFolder::~AtomicFolder() {
  try {
    if (!is_kept_) {
      remove_folder(temporary_, disk_);
    }
  } catch (const std::exception&) {
    // The next AtomicFolder of this path removes the rest.
  }
}

void AtomicFolder::commit() {
  sync_folder(temporary_, disk_);
  const bool replaces = ::access(path_.c_str(), F_OK) == 0;
  const int error = replaces ? disk_.exchange(temporary_, path_)
                             : disk_.rename(temporary_, path_);
  if (error == EINVAL || error == ENOSYS) {
    throw std::runtime_error(
        "the file system of " + path_ +
        " cannot exchange two folders; choose a folder that does not exist");
  }
  if (error != 0) {
    throw_error(error, "renaming " + temporary_ + " failed");
  }
  // The old folder is needed until the new name is on the disk.
  is_kept_ = true;
  const auto slash = path_.rfind('/');
  sync_folder(slash == std::string::npos ? "." : path_.substr(0, slash + 1),
              disk_);
  is_kept_ = false;
}

}  // namespace ddp::detail
