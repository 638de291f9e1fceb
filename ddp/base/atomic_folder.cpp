#include "ddp/base/atomic_folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace ddp::detail {
namespace {

/// @param error  the errno of a failed step, or 0.
void expect_none(int error, const std::string& step) {
  if (error != 0) {
    throw std::system_error(error, std::generic_category(), step + " failed");
  }
}

/// Returns the target of a symbolic link, or PATH without slashes at its end.
std::string resolve_folder(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return real_path(path);
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

}  // namespace

std::vector<std::string> names_in(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(folder.c_str()),
                                                   ::closedir);
  if (!opened && errno != ENOENT) {
    throw std::system_error(
        errno, std::generic_category(), "Cannot read " + folder);
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

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

int remove_folder(const std::string& folder, Disk& disk) {
  try {
    for (const auto& name : names_in(folder)) {
      if (const int error = disk.remove(folder + "/" + name)) {
        return error;
      }
    }
  } catch (const std::system_error& error) {
    return error.code().value();
  }
  return ::rmdir(folder.c_str()) == 0 || errno == ENOENT ? 0 : errno;
}

AtomicFolder::AtomicFolder(const std::string& path,
                           bool (*is_own)(const std::string& name),
                           Disk& disk)
    : disk_(disk), path_(resolve_folder(path)), temporary_(path_ + ".tmp") {
  check_names(path_, is_own);
  check_names(temporary_, is_own);
  expect_none(remove_folder(temporary_, disk_), "removing " + temporary_);
  expect_none(::mkdir(temporary_.c_str(), 0777) == 0 ? 0 : errno,
              "creating " + temporary_);
}

AtomicFolder::~AtomicFolder() {
  if (!is_kept_) {
    // After an error the next AtomicFolder of this path removes the rest.
    remove_folder(temporary_, disk_);
  }
}

void AtomicFolder::commit() {
  expect_none(disk_.sync_folder(temporary_), "syncing " + temporary_);
  const bool replaces = ::access(path_.c_str(), F_OK) == 0;
  const int error = replaces ? disk_.exchange(temporary_, path_)
                             : disk_.rename(temporary_, path_);
  if (error == EINVAL || error == ENOSYS) {
    throw std::runtime_error(
        "the file system of " + path_ +
        " cannot exchange two folders; choose a folder that does not exist");
  }
  expect_none(error, "renaming " + temporary_);
  // The old folder is needed until the new name is on the disk.
  is_kept_ = true;
  expect_none(disk_.sync_folder(folder_of(path_)),
              "syncing the folder of " + path_);
  is_kept_ = false;
}

}  // namespace ddp::detail
