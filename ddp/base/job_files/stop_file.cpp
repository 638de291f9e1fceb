#include "ddp/base/job_files/stop_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <utility>

#include "ddp/base/file_descriptor.h"
#include "ddp/base/job_files/job_directory.h"
#include "ddp/base/text/number.h"

namespace ddp::detail {
namespace {

std::atomic<bool> has_asked_for_stops{false};

/// Ignores the signal of --on-preempt: a scheduler may send it to each process
/// of a job, not to ddprun alone. Signals by which ddprun ends workers keep
/// their effect.
void ignore_stop_signal(const std::string& text) noexcept {
  const auto number = parse_number<int>(text);
  const auto ends_jobs = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  struct sigaction current {};
  if (number &&
      std::find(ends_jobs.begin(), ends_jobs.end(), *number) ==
          ends_jobs.end() &&
      ::sigaction(*number, nullptr, &current) == 0 &&
      current.sa_handler == SIG_DFL) {
    ::signal(*number, SIG_IGN);
  }
}

}  // namespace

StopFile::StopFile(std::string path) : path_(std::move(path)) {
  const FileDescriptor made(
      ::open(path_.c_str(),
             O_WRONLY | O_CREAT | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC,
             0600));
}

bool StopFile::says_stop() noexcept {
  if (!has_said_it_) {
    struct stat status {};
    has_said_it_ = ::stat(path_.c_str(), &status) == 0 && status.st_size > 0;
  }
  return has_said_it_;
}

StopFile* stop_file() noexcept {
  has_asked_for_stops = true;
  // Never destroyed: other threads may poll while the program ends.
  static StopFile* const file = []() -> StopFile* {
    const JobFiles files = own_job_files();
    std::ifstream signal(files.stop_signal);
    if (!signal) {
      return nullptr;
    }
    std::string number;
    std::getline(signal, number);
    ignore_stop_signal(number);
    return new StopFile(files.stop);
  }();
  return file;
}

bool has_polled_stop_file() noexcept {
  return has_asked_for_stops;
}

}  // namespace ddp::detail
