#include "launcher/job/status/status_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "launcher/base/text_file.h"
#include "launcher/job/status/job_folder.h"
#include "launcher/job/status/status_file.h"
#include "launcher/job/status/status_json.h"

namespace launcher {
namespace {

// Older files are not being renewed; a live job writes its file every second.
constexpr time_t kOldestSeconds = 10;

std::vector<std::string> entries_of(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()),
                                                    ::closedir);
  std::vector<std::string> names;
  while (const dirent* entry = listing ? ::readdir(listing.get()) : nullptr) {
    names.emplace_back(static_cast<const char*>(entry->d_name));
  }
  return names;
}

std::string file_in(const std::string& folder) {
  return folder + "/" + std::string(kStatusFileName);
}

/// Adds the status files in folders that running ddprun processes hold open.
void add_files_of_processes(std::vector<std::string>& files) {
  for (const std::string& pid : entries_of("/proc")) {
    const std::string process = "/proc/" + pid;
    const std::string name = read_text(process + "/comm", 64);
    if (name != "ddprun\n" && name != "ddp-supervisor\n") {
      continue;
    }
    const std::string descriptors = process + "/fd";
    for (const std::string& descriptor : entries_of(descriptors)) {
      std::error_code error;
      const auto path = std::filesystem::read_symlink(
          std::filesystem::path(descriptors) / descriptor, error);
      if (!error && is_job_folder(path.filename().string())) {
        files.push_back(file_in(path));
      }
    }
  }
}

struct StatusText {
  std::string text;
  time_t written;
};

/// Returns std::nullopt if the job has ended in the meantime.
std::optional<StatusText> read_status(const std::string& path) {
  const Fd file(
      ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  std::string text(2 * kMostStatusBytes, '\0');
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return StatusText{std::move(text), status.st_mtim.tv_sec};
}

}  // namespace

std::vector<std::string> find_status_files(const Environment& environment) {
  std::vector<std::string> found;
  add_files_of_processes(found);
  std::vector<std::string> places{"/tmp", "/var/tmp", "/dev/shm"};
  if (const std::string* chosen = find_variable(environment, "TMPDIR")) {
    places.push_back(*chosen);
  }
  for (const std::string& place : places) {
    for (const std::string& name : entries_of(place)) {
      if (is_job_folder(name)) {
        found.push_back(file_in(place + "/" + name));
      }
    }
  }
  // Identify duplicates by their folder: the file itself is replaced every
  // second.
  std::vector<std::string> files;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const std::string& path : found) {
    struct stat file {};
    struct stat folder {};
    if (::lstat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) &&
        file.st_uid == ::geteuid() &&
        ::stat(std::filesystem::path(path).parent_path().c_str(), &folder) ==
            0 &&
        seen.insert({folder.st_dev, folder.st_ino}).second) {
      files.push_back(path);
    }
  }
  return files;
}

StatusAnswers read_statuses(const std::vector<std::string>& files) {
  StatusAnswers answers;
  for (const std::string& path : files) {
    const bool lives = is_locked(std::filesystem::path(path).parent_path());
    const auto text = read_status(path);
    if (!text) {
      continue;
    }
    auto status = parse_status(text->text);
    const bool is_old = std::time(nullptr) - text->written > kOldestSeconds;
    if (!lives) {
      // Locks show on one host alone. A ddprun on another host renews its file.
      if (is_old) {
        answers.stale.push_back(path);
      }
    } else if (!status || is_old) {
      answers.silent.push_back({path, status ? status->supervisor : 0});
    } else {
      answers.jobs.push_back(std::move(*status));
    }
  }
  return answers;
}

}  // namespace launcher
