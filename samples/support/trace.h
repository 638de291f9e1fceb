#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace samples {

/// The time from `begin` up to `end`, in nanoseconds of the host's clock.
struct TimeSpan {
  int64_t begin;  ///< start
  int64_t end;    ///< first nanosecond after the span

  /// Returns the length in nanoseconds.
  int64_t length() const { return end - begin; }
};

/// Disjoint spans that do not touch each other, in ascending order.
using TimeSpans = std::vector<TimeSpan>;

/// Pure: returns the union of `spans`; empty spans are left out.
TimeSpans unite(std::vector<TimeSpan> spans);

/// Pure: returns the intersection.
TimeSpans intersect(const TimeSpans& a, const TimeSpans& b);

/// Pure: returns the total length in nanoseconds.
int64_t total_length(const TimeSpans& spans);

/// One event of the profiler.
struct TraceEvent {
  /// The kinds of events.
  enum class Kind {
    scope,          ///< scope named by RECORD_USER_SCOPE
    compute,        ///< backward function (CPU) or kernel (GPU)
    communication,  ///< a running collective
    other,          ///< operator, copy or CUDA runtime call
  };
  Kind kind;             ///< kind of the event
  std::string name;      ///< name in the profiler
  TimeSpan span;         ///< time of the event
  int64_t elements = 0;  ///< of all inputs but scalars; 0 if unknown
  /// Row in a timeline: a thread, a GPU stream (streams of one number on
  /// several GPUs share it), or a row for sums in shared memory.
  int64_t track = 0;
};

/// LibTorch's profiler (Kineto), known in Python as torch.profiler. Runs from
/// its construction to `stop`. A process can run one profiler at a time: the
/// constructor throws c10::Error if this thread already runs one.
///
/// If LibTorch has CUDA and the machine has no GPU, Kineto prints warnings to
/// standard error; the environment variable KINETO_LOG_LEVEL=5, set before,
/// suppresses them.
///
/// Thread contract: the thread that runs the steps creates and stops the
/// profiler; the profiler also records the work of autograd's threads for these
/// steps.
class Profiler {
 public:
  /// Starts the profiler. On a GPU, kernels are recorded, too: NCCL's kernels
  /// count as communication, all others as computation.
  explicit Profiler(c10::Device device);
  /// Stops the profiler if it still runs.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Waits for the GPU's work, stops the profiler and returns the recorded
  /// events, in no particular order.
  /// @throws c10::Error if the profiler was stopped before.
  std::vector<TraceEvent> stop();

 private:
  c10::Device device_;
  bool is_running_ = true;
};

/// Writes the events of all ranks of `group` to a file for chrome://tracing and
/// ui.perfetto.dev (Chrome's trace event format). Each rank of `group` is a
/// process "rank 0", "rank 1", ..., by its rank in `group`, with a row for each
/// of its tracks. Ranks of one host share a clock; between hosts, the times are
/// off by the difference of the clocks. Collective.
///
/// LibTorch can write a file for each rank, too, but puts sums in shared memory
/// into the row of the thread that starts them, where they overlap its work.
///
/// @param file  written by rank 0 of the group.
/// @param group  its ranks take part; null: all ranks. Without a process group
///   this process alone writes its events.
/// @throws c10::Error on rank 0 if the file cannot be written; on every rank if
///   a rank has left or the group's time-out is over.
void save_timeline(const std::string& file,
                   const std::vector<TraceEvent>& events,
                   const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

}  // namespace samples
