#include "launcher/workers/job_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "ddp/base/job_files/job_directory.h"
#include "launcher/base/error.h"

namespace launcher {
namespace {

bool is_needed(const Job& job) {
  return job.options.hang_timeout || job.options.on_preempt;
}

std::vector<std::string> patterns(const Job& job) {
  std::vector<std::string> result;
  const auto add = [&result](const std::string& place) {
    // Workers may have another working folder.
    if (!place.empty() && place.front() == '/') {
      result.push_back(place + "/ddprun_XXXXXX");
    }
  };
  const auto add_variable = [&](const char* name) {
    const std::string* place = find_variable(job.environment, name);
    add(place != nullptr ? *place : "");
  };
  add_variable("XDG_RUNTIME_DIR");
  add("/dev/shm");
  add("/tmp");
  add_variable("TMPDIR");
  return result;
}

std::string make_directory(const Job& job) {
  for (std::string& path : patterns(job)) {
    if (::mkdtemp(path.data()) != nullptr) {
      return path;
    }
  }
  throw LaunchError(
      kExitFailure,
      "--hang-timeout and --on-preempt need a folder on this host, but "
      "$XDG_RUNTIME_DIR, /dev/shm, /tmp and $TMPDIR cannot be written to (" +
          std::generic_category().message(errno) +
          "); set TMPDIR to a folder that can");
}

}  // namespace

JobDirectory::JobDirectory(const Job& job)
    : path_(is_needed(job) ? make_directory(job) : "") {
  if (job.options.on_preempt) {
    std::ofstream(ddp::detail::files_of_rank(path_, "0").stop_signal)
        << job.options.on_preempt->signal << '\n';
  }
}

JobDirectory::~JobDirectory() {
  if (!path_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
}

std::string job_directory_pattern(const Job& job) {
  return is_needed(job) ? patterns(job).front() : "";
}

}  // namespace launcher
