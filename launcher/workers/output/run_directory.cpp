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

// torchrun's value for "no log files".
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

/// Returns the folder of the outer worker if ddprun itself runs as a worker of
/// another ddprun job. If the inner ddprun is killed with the outer job and
/// cannot remove its own files, they are removed with the outer folder. Returns
/// std::nullopt if TORCHELASTIC_ERROR_FILE is not a path that ddprun created:
/// an error file of another origin may lie anywhere.
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

/// Candidate parents for temporary files, in order of preference.
std::vector<fs::path> temporary_places(const Job& job,
                                       const std::vector<std::string>& others) {
  std::vector<fs::path> places;
  if (const auto outer = outer_folder(job)) {
    places.push_back(*outer);
  }
  const std::string* chosen = find_variable(job.environment, "TMPDIR");
  if (chosen != nullptr && !chosen->empty()) {
    std::error_code error;  // set for a relative path without a working folder
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

/// Returns std::nullopt and sets errno if the folder cannot be created.
std::optional<std::string> make_unique_folder(std::string pattern) {
  return ::mkdtemp(pattern.data()) != nullptr ? std::optional(pattern)
                                              : std::nullopt;
}

/// Creates the log folder with the permissions that umask, the setgid bit and
/// the access control list of its parent give. mkdtemp() would use mode 0700,
/// and chmod() would undo the setgid bit and the list.
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

/// Creates a folder, which may exist already. Refuses a symbolic link.
void make_own_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) {
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
      is_kept_(keeps_files(job)) {}

RunDirectory::~RunDirectory() {
  if (is_kept_) {
    ::rmdir(path_.c_str());  // removes the folder if no worker was started
  } else if (!path_.empty() && ::rmdir(path_.c_str()) != 0) {
    std::error_code ignored;  // not needed if rmdir() removed an empty folder
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
    // On a read-only file system mkdir() fails also for existing folders.
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

void make_attempt_folder(const std::string& path) {
  make_directories(
      fs::path(path).parent_path());  // may have been removed in the meantime
  make_own_folder(path);
}

void make_worker_folder(const std::string& path) {
  make_own_folder(path);
}

AttemptFiles make_attempt_files(const LaunchPlan& plan) {
  AttemptFiles files;
  std::string made;  // usually all workers share one folder
  const auto make_parent = [&made](const std::string& path) {
    const std::string folder = fs::path(path).parent_path();
    if (!folder.empty() && folder != made) {
      make_attempt_folder(folder);
      made = folder;
    }
  };
  const auto create_filtered = [&](const std::string& path) {
    make_parent(path);
    return path.empty() ? Fd() : create_log(path);
  };
  files.filtered_out = create_filtered(plan.filtered_out.path);
  files.filtered_err = create_filtered(plan.filtered_err.path);
  const auto create = [](bool is_wanted, const std::string& path) {
    return is_wanted ? LogFile{path, create_log(path)} : LogFile();
  };
  for (const WorkerSpec& worker : plan.workers) {
    const std::string& folder = worker.directory;
    make_parent(folder);
    if (!folder.empty()) {
      make_worker_folder(folder);
    }
    files.workers.push_back(
        {create(worker.to_file.out, folder + "/stdout.log"),
         create(worker.to_file.err, folder + "/" + kErrorLog)});
  }
  return files;
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
