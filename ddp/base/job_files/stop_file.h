#pragma once

#include <atomic>
#include <string>

// The file named by DDPRUN_STOP_FILE: `ddprun --on-preempt` uses it to request
// that a worker saves and ends. Includes no LibTorch.
//
// A worker that wants such requests creates the file, empty, when it starts; a
// worker without the file gets the signal itself. When the signal arrives,
// ddprun atomically replaces the file by one with this line:
//
//   signal=SIGUSR1 seconds=60
//
// So any program can check whether the file is empty:
//
//   : >> "$DDPRUN_STOP_FILE"                  # at the start
//   if [ -s "$DDPRUN_STOP_FILE" ]; then ...   # once a step
//
//   open(os.environ["DDPRUN_STOP_FILE"], "a").close()
//   if os.path.getsize(os.environ["DDPRUN_STOP_FILE"]) > 0: ...
//
// Each worker has its own file. Workers on other hosts may get no request, so
// ranks that must stop at the same step have to agree, as ddp::stop_requested()
// does.
namespace ddp::detail {

/// The stop file of this process.
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

/// Returns the file named by DDPRUN_STOP_FILE, or null without one. The first
/// call creates the file and ignores the signal of DDPRUN_STOP_SIGNAL, unless
/// the program has a handler or the signal is SIGTERM, SIGINT, SIGHUP or
/// SIGQUIT.
StopFile* stop_file() noexcept;

/// Returns true if this process has called stop_file(). Thread-safe.
bool has_polled_stop_file() noexcept;

}  // namespace ddp::detail
