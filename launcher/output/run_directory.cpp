#include "launcher/output/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "ddp/worker_env.h"
#include "launcher/error.h"

namespace launcher {
namespace {

namespace fs = std::filesystem;

// torchrun's name for "no files".
constexpr const char* kNoFiles = "/dev/null";

bool has_log_dir(const Job& job) {
  return !job.options.log_dir.empty() && job.options.log_dir != kNoFiles;
}

bool wants_files(const Job& job) {
  return !job.options.redirects.empty() || !job.options.tee.empty();
}

[[noreturn]] void refuse(const std::string& path, int error) {
  throw LaunchError(kExitFailure,
                    "cannot write to " + path + " (" +
                        std::generic_category().message(error) +
                        "); give another --log-dir, or set TMPDIR");
}

std::string temporary_folder(const Job& job) {
  // In a job in a job the inner guardian may be killed with the rest: what it
  // cannot remove then goes with the outer one's folder.
  const std::string* file =
      find_variable(job.environment, ddp::env::kErrorFile);
  if (file != nullptr && fs::path(*file).is_absolute()) {
    const fs::path folder = fs::path(*file).parent_path();
    if (::access(folder.c_str(), W_OK) == 0) {
      return folder;
    }
  }
  const std::string* chosen = find_variable(job.environment, "TMPDIR");
  return chosen != nullptr && !chosen->empty() ? *chosen : "/tmp";
}

}  // namespace

std::string run_directory_pattern(const Job& job) {
  if (!has_log_dir(job)) {
    return fs::absolute(temporary_folder(job)) / "ddprun_XXXXXX";
  }
  if (job.run_id.find('/') != std::string::npos) {
    throw UsageError(
        "--rdzv-id: expected a name without a slash (a folder gets it), but "
        "got \"" +
        job.run_id + "\"");
  }
  return fs::absolute(job.options.log_dir) / (job.run_id + "_XXXXXX");
}

RunDirectory::RunDirectory(const Job& job)
    : path_(run_directory_pattern(job)),
      is_kept_(has_log_dir(job) ||
               (wants_files(job) && job.options.log_dir != kNoFiles)) {
  if (has_log_dir(job)) {
    make_private_directories(fs::path(path_).parent_path());
  }
  if (::mkdtemp(path_.data()) == nullptr) {
    refuse(fs::path(path_).parent_path(), errno);
  }
}

RunDirectory::~RunDirectory() {
  if (!is_kept_) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
}

void make_private_directories(const std::string& path) {
  std::string partial;
  for (const fs::path& part : fs::path(path)) {
    partial = (fs::path(partial) / part).string();
    if (::mkdir(partial.c_str(), 0700) != 0 && errno != EEXIST &&
        !fs::is_directory(partial)) {
      refuse(partial, errno);
    }
  }
}

Fd create_log(const std::string& path) {
  Fd file(::open(path.c_str(),
                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                 0600));
  if (!file) {
    refuse(path, errno);
  }
  return file;
}

}  // namespace launcher
