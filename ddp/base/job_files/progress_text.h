#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// What a worker writes into the file that DDPRUN_PROGRESS_FILE names, so that
// `ddprun --hang-timeout` sees that it does not hang. Includes no LibTorch:
// ddprun reads it.
//
// Any change of the file is progress: of its text, or of its time (`touch`). So
// any program can report:
//
//   echo "step 12" > "$DDPRUN_PROGRESS_FILE"
//   open(os.environ["DDPRUN_PROGRESS_FILE"], "w").write("step 12")
//
// It is one line of at most 4,096 bytes. These words mean something, all others
// are shown to people when the worker hangs:
//
// - limit=600      until the next change it may take 600 seconds, for an
//                  evaluation or a save; less than --hang-timeout has no effect
// - limit=3x       three times --hang-timeout
// - collectives=7  how many collectives it has begun: who has begun fewer than
//                  the others is who they wait for
// - waits=1        the last of them may wait for the others
// - pass=12        backward passes that it has ended
// - beat=9         nothing: a number that a program may count up to report
// - pid=123        of the process that writes, where that is not the worker
//                  itself but a child of it
//
// A worker that has not written yet is not judged. The first report is mostly
// that of the start, so the second may take five times --hang-timeout.
namespace ddp::detail {

inline constexpr size_t kMostProgressBytes = 4096;

/// What a progress file says.
struct Progress {
  /// Of the time until the next report; nothing: --hang-timeout.
  struct Limit {
    std::optional<std::chrono::milliseconds> time;
    int times = 1;  ///< of --hang-timeout, where there is no time
  };

  pid_t pid = 0;  ///< 0: the worker's own
  std::optional<int64_t> passes;
  std::optional<int64_t> collectives;
  bool waits = false;
  std::optional<Limit> limit;
  std::string text;  ///< the other words
};

/// Pure. What cannot be read as said above belongs to the other words; bytes
/// that are no printable ASCII become "?".
Progress parse_progress(std::string_view line);

/// "step 12", "step 12, after backward pass 12, in collective 345"; "" when it
/// says nothing.
std::string describe(const Progress& progress);

}  // namespace ddp::detail
