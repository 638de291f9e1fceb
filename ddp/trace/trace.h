#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

// Where the time of a training step goes: LibTorch's profiler around some
// steps, what of the communication is hidden behind computing, and a timeline
// of all ranks for a trace viewer.
//
// Example:
// @code
//   ddp::Profiler profiler;
//   for (int step = 0; step < 5; ++step) {
//     optimizer.zero_grad();
//     torch::Tensor loss;
//     {
//       RECORD_USER_SCOPE("forward");  // <ATen/record_function.h>
//       loss = loss_of(model->forward(images), labels);
//     }
//     {
//       RECORD_USER_SCOPE("backward");
//       loss.backward();
//     }
//     RECORD_USER_SCOPE("optimizer");
//     optimizer.step();
//   }
//   const auto events = profiler.stop();
//   const ddp::StepTimes times = ddp::step_times(events, 5);
//   std::cout << times.hidden << " ms hidden, " << times.exposed << " not\n";
//   ddp::save_timeline("timeline.json", events);
// @endcode
namespace ddp {

/// A piece of time from `begin` up to `end`, in nanoseconds of the host's
/// clock.
struct TimeSpan {
  int64_t begin;
  int64_t end;

  int64_t length() const { return end - begin; }
};

/// Pieces of time that do not touch each other, in order.
using TimeSpans = std::vector<TimeSpan>;

/// Pure: the time that is in at least one of `spans`; empty ones are left out.
TimeSpans unite(std::vector<TimeSpan> spans);

/// Pure: the time that is in both.
TimeSpans intersect(const TimeSpans& a, const TimeSpans& b);

/// Pure: nanoseconds.
int64_t total_length(const TimeSpans& spans);

/// What the profiler saw.
struct TraceEvent {
  enum class Kind {
    scope,          ///< that the program named by RECORD_USER_SCOPE
    compute,        ///< a function of a backward pass; of a GPU, a kernel
    communication,  ///< a collective at work
    other,          ///< an operator, a copy, a call of the CUDA runtime
  };
  Kind kind;
  std::string name;
  TimeSpan span;
  int64_t elements = 0;  ///< of an all-reduce, where the profiler knows
  int64_t track = 0;     ///< its row in a timeline: a thread, a GPU's stream
};

/// LibTorch's profiler (Kineto), which Python knows as torch.profiler: runs
/// from its construction to `stop`. One at a time in a process.
///
/// Where LibTorch has CUDA and the machine has no GPU, it complains on standard
/// error; the environment variable KINETO_LOG_LEVEL=5, set before, keeps it
/// from that.
///
/// Thread contract: made and stopped by the thread that runs the steps; what
/// autograd's threads do for them is seen.
class Profiler {
 public:
  /// Starts. Of `local_device()`, the first form; with a GPU its kernels are
  /// seen, too, and they are what counts as computing.
  Profiler();
  explicit Profiler(c10::Device device);
  /// Stops, if it still runs.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Stops, and returns what was seen, in no order.
  /// @throws c10::Error when it has been stopped before.
  std::vector<TraceEvent> stop();

 private:
  c10::Device device_;
  bool is_running_ = true;
};

/// Where the time of a step goes, in milliseconds. `forward`, `backward` and
/// `optimizer` are whole scopes; the rest is inside the backward pass:
/// communication = hidden + exposed, and hidden is what happens while the rank
/// computes.
struct StepTimes {
  double forward;
  double backward;
  double compute;
  double communication;
  double hidden;
  double exposed;
  double optimizer;
};

/// Pure: the means over `steps` steps of one rank, from the scopes named
/// "forward", "backward" and "optimizer" and what is in them. A GPU works
/// later than it is asked to: synchronize it before such a scope ends.
StepTimes step_times(const std::vector<TraceEvent>& events, int64_t steps);

/// Pure: when the scopes of this name ran.
TimeSpans scopes(const std::vector<TraceEvent>& events,
                 const std::string& name);

/// One all-reduce, in milliseconds since its backward pass began.
struct AllReduceTime {
  double begin;
  double end;
  double hidden;  ///< as a part of its time, 0 to 1
  int64_t elements;
};

/// Pure: the all-reduces of the last scope "backward", in the order in which
/// they began.
std::vector<AllReduceTime> last_all_reduces(
    const std::vector<TraceEvent>& events);

/// Writes the events of all ranks to a file that chrome://tracing and
/// ui.perfetto.dev open (Chrome's trace event format): a process "rank 0",
/// "rank 1", ... for each rank, with a row for each of its tracks. Ranks of one
/// host have one clock; those of several are as far off as their clocks.
///
/// @param file  written by rank 0.
/// @param group  null for all ranks. Without a process group, this process is
///   rank 0.
/// @throws c10::Error on rank 0 when the file cannot be written, or when a
///   rank has left.
///
/// Collective.
void save_timeline(const std::string& file,
                   const std::vector<TraceEvent>& events,
                   const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

}  // namespace ddp
