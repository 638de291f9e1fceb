#pragma once

#include <atomic>
#include <string>

namespace ddp::detail {

/// The file stop_RANK of job_directory.h: `ddprun --on-preempt` uses it to
/// request that a worker saves and ends.
class StopFile {
 public:
  /// Creates the file, so that ddprun sends requests to this process. If the
  /// file cannot be created, no request arrives.
  explicit StopFile(std::string path);

  /// Returns true once the file contains a request. Costs one stat() until
  /// then. Thread-safe.
  bool says_stop() noexcept;

 private:
  std::string path_;
  std::atomic<bool> has_said_it_{false};
};

/// Returns the file of this process's rank in DDPRUN_JOB_DIR, or null without
/// --on-preempt. The first call creates the file and ignores the signal of
/// --on-preempt, unless the program has a handler or the signal is SIGTERM,
/// SIGINT, SIGHUP or SIGQUIT.
StopFile* stop_file() noexcept;

/// Returns true if this process has called stop_file(). Thread-safe.
bool has_polled_stop_file() noexcept;

}  // namespace ddp::detail
