#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "samples/support/spans.h"

namespace samples {

/// What a profiler saw of a training step.
struct TraceEvent {
  enum class Kind {
    phase,          ///< a scope that the program named
    compute,        ///< a function of the backward pass, or a GPU's kernel
    communication,  ///< an all-reduce at work
  };
  Kind kind;
  std::string name;
  Span span;
  int64_t elements = 0;  ///< of an all-reduce, where the profiler knows
};

/// Where the time of a step goes, in milliseconds. `forward`, `backward` and
/// `optimizer` are whole phases; the rest is inside the backward pass:
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

/// Pure: the means over `steps` steps of one rank, from the phases "forward",
/// "backward" and "optimizer" and what is in them.
StepTimes step_times(const std::vector<TraceEvent>& events, int64_t steps);

/// When a phase of this name ran.
Spans phases(const std::vector<TraceEvent>& events, const std::string& name);

/// Milliseconds that one pass through the phases of this name took.
double phase_time(const std::vector<TraceEvent>& events,
                  const std::string& name,
                  int64_t passes);

/// One all-reduce, in milliseconds since its backward pass began.
struct Reduction {
  double begin;
  double end;
  double hidden;  ///< as a part of its time, 0 to 1
  int64_t elements;
};

/// Pure: the all-reduces of the last phase "backward", as they began.
std::vector<Reduction> last_reductions(const std::vector<TraceEvent>& events);

}  // namespace samples
