#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Format of the file named by DDPRUN_PROGRESS_FILE. A worker writes it to show
// `ddprun --hang-timeout` that it does not hang. Includes no LibTorch: ddprun
// reads it.
//
// Any change of the file is progress: of its text, or of its time (`touch`). So
// any program can report:
//
//   echo "step 12" > "$DDPRUN_PROGRESS_FILE"
//   open(os.environ["DDPRUN_PROGRESS_FILE"], "w").write("step 12")
//
// The file has one line of at most 4,096 bytes. The following words have a
// meaning; all other words are shown to the user if the worker hangs:
//
// - limit=600      the next change may take 600 seconds, for an evaluation or a
//                  save; less than --hang-timeout has no effect
// - limit=3x       the next change may take three times --hang-timeout
// - collectives=7  number of collectives that the rank has begun; a rank with
//                  fewer than the others is the rank that they wait for
// - waits=1        the last collective may wait for other ranks
// - pass=12        number of completed backward passes
// - beat=9         no meaning: a number that a program may count up to report
// - pid=123        process that writes the file, if it is a child of the worker
//
// A worker that has not written yet is not judged. The first report is mostly
// the one of the start, so the second report may take five times
// --hang-timeout.
namespace ddp::detail {

inline constexpr size_t kMostProgressBytes = 4096;

/// Contents of a progress file.
struct Progress {
  /// Limit of the time until the next report.
  struct Limit {
    std::optional<std::chrono::milliseconds> time;
    int times = 1;  ///< factor of --hang-timeout if time is unset
  };

  pid_t pid = 0;  ///< 0: the worker itself
  std::optional<int64_t> passes;
  std::optional<int64_t> collectives;
  bool waits = false;
  std::optional<Limit> limit;
  std::string text;  ///< all other words
};

/// Pure: parses a progress file. Words that do not match the format become part
/// of `text`; bytes that are not printable ASCII become "?".
Progress parse_progress(std::string_view line);

/// Returns "step 12", "step 12, after backward pass 12, in collective 345", or
/// "" for an empty progress.
std::string describe(const Progress& progress);

}  // namespace ddp::detail
