#pragma once

#include <atomic>
#include <string>

// The file that DDPRUN_STOP_FILE names: by it `ddprun --on-preempt` tells a
// worker that it is to save and to end. Includes no LibTorch.
//
// A worker that wants to be told makes the file, empty, when it starts; who has
// not made it gets the signal itself. When the signal comes, ddprun puts
// another file in its place, in one step, with one line:
//
//   signal=SIGUSR1 seconds=60
//
// So any program asks whether there is something in the file:
//
//   : >> "$DDPRUN_STOP_FILE"                  # at the start
//   if [ -s "$DDPRUN_STOP_FILE" ]; then ...   # once a step
//
//   open(os.environ["DDPRUN_STOP_FILE"], "a").close()
//   if os.path.getsize(os.environ["DDPRUN_STOP_FILE"]) > 0: ...
//
// Each worker has a file of its own, and one on another host may never be told.
// Ranks that are to stop at the same step agree on it: ddp::stop_requested()
// does.
namespace ddp::detail {

/// The file as this process reads it.
class StopFile {
 public:
  /// Makes the file: from now on this process is told. Where that cannot be, it
  /// never is.
  explicit StopFile(std::string path);

  /// One stat(), until it says so for the first time. Any thread.
  bool says_stop() noexcept;

 private:
  std::string path_;
  std::atomic<bool> has_said_it_{false};
};

/// The one that DDPRUN_STOP_FILE names; null where there is none. Made by the
/// first call.
StopFile* stop_file() noexcept;

/// Whether this process has asked for it. Any thread.
bool asks_for_stops() noexcept;

}  // namespace ddp::detail
