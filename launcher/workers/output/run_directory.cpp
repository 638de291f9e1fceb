#include "launcher/workers/output/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string_view>

#include "ddp/base/cluster/worker_env.h"
#include "launcher/base/error.h"

namespace launcher {
namespace {

namespace fs = std::filesystem;

// torchrun's name for "no files".
constexpr const char* kNoFiles = "/dev/null";
constexpr const char* kTemporaryName = "ddprun_XXXXXX";

bool has_log_dir(const Job& job) {
  return !job.options.log_dir.empty() && job.options.log_dir != kNoFiles;
}

[[noreturn]] void refuse(const std::string& path, int error) {
  throw LaunchError(kExitFailure,
                    "cannot write to " + path + " (" +
                        std::generic_category().message(error) +
                        "); give another --log-dir, or set TMPDIR");
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c >= '0' && c <= '9';
  });
}

/// In a job in a job the inner ddprun may be killed with the rest: what it
/// cannot remove then goes with the outer one's folder. An error file that
/// somebody else has chosen may lie anywhere.
std::optional<fs::path> outer_folder(const Job& job) {
  const std::string* file =
      find_variable(job.environment, ddp::env::kErrorFile);
  if (file == nullptr) {
    return std::nullopt;
  }
  const fs::path path(*file);
  const fs::path folder = path.parent_path();
  const std::string attempt = folder.parent_path().filename();
  const bool is_ours = path.is_absolute() && path.filename() == "error.json" &&
                       is_number(folder.filename()) &&
                       attempt.rfind("attempt_", 0) == 0;
  return is_ours ? std::optional(folder) : std::nullopt;
}

/// Where temporary files may go, the best first.
std::vector<fs::path> temporary_places(const Job& job,
                                       const std::vector<std::string>& others) {
  std::vector<fs::path> places;
  if (const auto outer = outer_folder(job)) {
    places.push_back(*outer);
  }
  const std::string* chosen = find_variable(job.environment, "TMPDIR");
  if (chosen != nullptr && !chosen->empty()) {
    std::error_code error;  // it is relative, and the working folder is gone
    const fs::path path = fs::absolute(*chosen, error);
    if (!error) {
      places.push_back(path);
    }
  }
  places.insert(places.end(), others.begin(), others.end());
  return places;
}

std::string log_folder_pattern(const Job& job) {
  if (job.run_id.find('/') != std::string::npos) {
    throw UsageError(
        "--rdzv-id: expected a name without a slash (a folder gets it), but "
        "got \"" +
        job.run_id + "\"");
  }
  std::error_code error;
  const fs::path path = fs::absolute(job.options.log_dir, error);
  if (error) {
    refuse(job.options.log_dir, error.value());
  }
  return path / (job.run_id + "_XXXXXX");
}

/// Of a folder with files of these rights: who reads them can enter it.
mode_t folder_mode(mode_t files) {
  constexpr mode_t kRead = 0444;
  return 0700 | files | ((files & kRead) >> 2);
}

/// Keeps the bit that gives what is made in a folder to the folder's group.
void set_folder_mode(const std::string& path, mode_t files) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    ::chmod(path.c_str(), folder_mode(files) | (status.st_mode & S_ISGID));
  }
}

/// Nothing, and errno, where it cannot be made.
std::optional<std::string> make_unique_folder(std::string pattern) {
  return ::mkdtemp(pattern.data()) != nullptr ? std::optional(pattern)
                                              : std::nullopt;
}

/// With the rights that umask, the folder's group and its access list give:
/// mkdtemp() would make it its owner's alone, and chmod() undo the latter two.
std::string make_log_folder(const Job& job) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  constexpr size_t kRandomLetters = 6;
  std::string path = log_folder_pattern(job);
  const std::string parent = fs::path(path).parent_path();
  make_directories(parent);
  std::random_device random;
  do {
    for (size_t at = path.size() - kRandomLetters; at < path.size(); ++at) {
      path[at] = kLetters[random() % kLetters.size()];
    }
    if (::mkdir(path.c_str(), 0777) == 0) {
      return path;
    }
  } while (errno == EEXIST);
  refuse(parent, errno);
}

/// A folder that may be there, but no link to one.
void make_own_folder(const std::string& path, std::optional<mode_t> mode) {
  if (::mkdir(path.c_str(), 0777) == 0) {
    if (mode) {
      set_folder_mode(path, *mode);
    }
    return;
  }
  const int error = errno;
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    refuse(path, error);
  }
  if (!S_ISDIR(status.st_mode)) {
    refuse(path, ENOTDIR);
  }
}

}  // namespace

bool keeps_files(const Job& job) {
  return has_log_dir(job) ||
         (job.options.log_dir != kNoFiles &&
          (!job.options.redirects.empty() || !job.options.tee.empty()));
}

std::string run_directory_pattern(const Job& job) {
  return has_log_dir(job) ? log_folder_pattern(job)
                          : temporary_folder_pattern(job);
}

std::string temporary_folder_pattern(const Job& job) {
  return temporary_places(job, {"/tmp"}).front() / kTemporaryName;
}

std::string make_temporary_folder(const Job& job,
                                  bool is_needed,
                                  const std::vector<std::string>& others) {
  const std::vector<fs::path> places = temporary_places(job, others);
  int first_error = 0;
  for (const fs::path& place : places) {
    if (const auto path = make_unique_folder(place / kTemporaryName)) {
      return *path;
    }
    first_error = first_error != 0 ? first_error : errno;
  }
  if (is_needed) {
    refuse(places.front(), first_error);
  }
  return "";
}

RunDirectory::RunDirectory(const Job& job,
                           const std::vector<std::string>& places)
    : path_(has_log_dir(job)
                ? make_log_folder(job)
                : make_temporary_folder(job, keeps_files(job), places)),
      is_kept_(keeps_files(job)) {
  if (is_kept_ && job.options.log_mode) {
    set_folder_mode(path_, *job.options.log_mode);
  }
}

RunDirectory::~RunDirectory() {
  if (is_kept_) {
    ::rmdir(path_.c_str());  // where no worker was started it is empty
  } else if (!path_.empty() && ::rmdir(path_.c_str()) != 0) {
    std::error_code ignored;  // an empty one goes without a file that is open
    fs::remove_all(path_, ignored);
  }
}

void make_directories(const std::string& path) {
  std::string partial;
  for (const fs::path& part : fs::path(path)) {
    partial = (fs::path(partial) / part).string();
    if (::mkdir(partial.c_str(), 0777) == 0) {
      continue;
    }
    // Where nothing may be written, mkdir() says so also of what exists.
    const int error = errno;
    struct stat status {};
    if (::stat(partial.c_str(), &status) != 0) {
      refuse(partial, error);
    }
    if (!S_ISDIR(status.st_mode)) {
      refuse(partial, ENOTDIR);
    }
  }
}

void make_attempt_folder(const std::string& path, std::optional<mode_t> mode) {
  make_directories(
      fs::path(path).parent_path());  // somebody may have tidied up
  make_own_folder(path, mode);
}

void make_worker_folder(const std::string& path, std::optional<mode_t> mode) {
  make_own_folder(path, mode);
}

Fd create_log(const std::string& path, std::optional<mode_t> mode) {
  Fd file(
      ::open(path.c_str(),
             O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC,
             mode.value_or(0666)));
  if (!file || (mode && ::fchmod(file.get(), *mode) != 0)) {
    refuse(path, errno);
  }
  return file;
}

}  // namespace launcher
