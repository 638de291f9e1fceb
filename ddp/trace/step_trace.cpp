#include "ddp/trace/step_trace.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include "ddp/job/error_text.h"
#include "ddp/job/process_group.h"
#include "ddp/tensors/streams.h"
#include "ddp/trace/detail/timeline.h"
#include "ddp/trace/detail/trace_file.h"

namespace ddp::detail {
namespace {

/// A profiler that runs for some steps of this thread.
class StepTrace {
 public:
  StepTrace(const void* model, c10::Device device)
      : model_(model), device_(device), profiler_(device) {}

  const void* model() const { return model_; }
  bool is_full() const { return begins_.size() == kTracedSteps; }
  void begin_step() { begins_.push_back(time_of_idle_device()); }

  void write(const TraceFile& file) {
    const int64_t end = time_of_idle_device();
    auto events = profiler_.stop();
    for (size_t i = 0; i < begins_.size(); ++i) {
      events.push_back(
          {TraceEvent::Kind::scope,
           "step " + std::to_string(i + 1),
           {begins_[i], i + 1 < begins_.size() ? begins_[i + 1] : end},
           /*elements=*/0,
           kStepTrack});
    }
    file.append(timeline_items(events, rank(), file.begin(begins_.front())));
    if (rank() == 0) {
      // The first step also creates memory, threads and connections.
      const size_t first = begins_.size() > 1 ? 1 : 0;
      std::fprintf(
          stderr,
          "DDP_TRACE: %s has the first steps of all ranks. %s (rank 0)\n",
          file.path().c_str(),
          step_report(events,
                      {begins_[first], end},
                      static_cast<int64_t>(begins_.size() - first),
                      device_)
              .c_str());
    }
  }

 private:
  /// The host runs ahead of a GPU. It waits, so that a step's kernels lie
  /// between the step's begin and end.
  int64_t time_of_idle_device() const {
    wait_for_device(device_);
    return c10::getTime();
  }

  const void* model_;
  c10::Device device_;
  Profiler profiler_;
  std::vector<int64_t> begins_;
};

thread_local StepTrace* current_trace = nullptr;

void warn_of_no_trace(const std::exception& error) {
  TORCH_WARN("rank ", rank(), " has no trace: ", detail::text_of(error));
}

void start_trace(const void* model, c10::Device device) {
  static std::atomic<bool> was_traced{false};
  // The program's own profiler goes first.
  if (torch::profiler::impl::profilerEnabled() || was_traced.exchange(true)) {
    return;
  }
  current_trace = new StepTrace(model, device);
  // Destroyed at the end of the thread. The thread's data of the profiler live
  // longer, because the profiler created them above.
  struct AtThreadEnd {
    ~AtThreadEnd() { end_step_trace(nullptr); }
  };
  static thread_local const AtThreadEnd at_thread_end;
  static_cast<void>(at_thread_end);
}

}  // namespace

void trace_step(const void* model, c10::Device device) noexcept {
  if (trace_file() == nullptr) {
    return;
  }
  try {
    if (current_trace == nullptr) {
      start_trace(model, device);
    }
    if (current_trace == nullptr || current_trace->model() != model) {
      return;
    }
    if (current_trace->is_full()) {
      end_step_trace(model);
    } else {
      current_trace->begin_step();
    }
  } catch (const std::exception& error) {
    warn_of_no_trace(error);
  }
}

void end_step_trace(const void* model) noexcept {
  if (current_trace == nullptr ||
      (model != nullptr && current_trace->model() != model)) {
    return;
  }
  const std::unique_ptr<StepTrace> ended(std::exchange(current_trace, nullptr));
  try {
    ended->write(*trace_file());
  } catch (const std::exception& error) {
    warn_of_no_trace(error);
  }
}

std::string step_report(const std::vector<TraceEvent>& events,
                        const TimeSpan& steps,
                        int64_t count,
                        const c10::Device& device) {
  TimeSpans computing;
  TimeSpans communication;
  for (const auto& event : events) {
    if (event.kind == TraceEvent::Kind::communication) {
      communication.push_back(event.span);
    } else if (event.kind == TraceEvent::Kind::compute ||
               (device.is_cpu() &&
                event.name == "DistributedDataParallel.forward")) {
      computing.push_back(event.span);
    }
  }
  computing = intersect(unite(std::move(computing)), {steps});
  communication = intersect(unite(std::move(communication)), {steps});
  const int64_t hidden = total_length(intersect(computing, communication));
  const int64_t exposed = total_length(communication) - hidden;
  const int64_t neither = steps.length() - total_length(computing) - exposed;

  const auto mean = [count](int64_t nanoseconds) {
    return static_cast<double>(nanoseconds) / 1e6 / static_cast<double>(count);
  };
  std::array<char, 200> text{};
  std::snprintf(text.data(),
                text.size(),
                "A step takes %.2f ms: %.2f computing, %.2f in communication "
                "that no computation hides (%.2f are hidden), %.2f in neither",
                mean(steps.length()),
                mean(total_length(computing)),
                mean(exposed),
                mean(hidden),
                mean(neither));
  return text.data();
}

}  // namespace ddp::detail
