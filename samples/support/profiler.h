#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "samples/support/step_times.h"

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace samples {

/// LibTorch's own profiler (Kineto), which Python knows as torch.profiler.
/// One at a time. Scopes get names by RECORD_USER_SCOPE("forward").
///
/// Example:
/// @code
///   samples::Profiler profiler(ddp::local_device());
///   { RECORD_USER_SCOPE("forward"); output = model->forward(images); }
///   profiler.stop();
///   profiler.save("step.json");  // chrome://tracing, ui.perfetto.dev
/// @endcode
class Profiler {
 public:
  /// Starts; with a GPU its kernels are seen, too.
  explicit Profiler(torch::Device device);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Stops and returns the scopes of the program, the functions of backward
  /// passes (with a GPU: its kernels) and the all-reduces.
  std::vector<TraceEvent> stop();

  /// Once, after `stop`: writes all that was seen, in Chrome's trace format.
  void save(const std::string& file);

 private:
  torch::Device device_;
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> result_;
};

/// Keeps the profiler from complaining on standard error that there is no GPU.
/// To be called at the start of the program.
void silence_profiler();

}  // namespace samples
