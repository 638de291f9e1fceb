#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "samples/support/trace.h"

namespace samples {

/// Times of a step, in milliseconds. `forward`, `backward` and `optimizer` are
/// whole scopes; the other values cover only the backward pass. communication =
/// hidden + exposed; `hidden` is the communication during which the rank
/// computes.
struct StepTimes {
  double forward;        ///< scopes named "forward"
  double backward;       ///< scopes named "backward"
  double compute;        ///< computation
  double communication;  ///< collectives
  double hidden;         ///< collectives beside computation
  double exposed;        ///< collectives without computation
  double optimizer;      ///< scopes named "optimizer"
};

/// Pure: returns the means over `steps` steps of one rank, from the scopes
/// named "forward", "backward" and "optimizer" and the events in them. A GPU
/// executes work asynchronously: synchronize it before the end of each scope. A
/// missing scope counts as 0; `steps` must be positive.
StepTimes step_times(const std::vector<TraceEvent>& events, int64_t steps);

/// Pure: returns the spans of the scopes with this name.
TimeSpans scopes(const std::vector<TraceEvent>& events,
                 const std::string& name);

/// One all-reduce, in milliseconds since the start of its backward pass.
struct AllReduceTime {
  double begin;      ///< start of the all-reduce
  double end;        ///< end of the all-reduce
  double hidden;     ///< hidden fraction of its time, 0 to 1
  int64_t elements;  ///< number of elements; 0 if unknown
};

/// Pure: returns the all-reduces of the last scope "backward", ordered by their
/// begin; empty without this scope. An all-reduce in shared memory counts from
/// its start until its end, although the rank works for it in parts of that
/// time only.
std::vector<AllReduceTime> last_all_reduces(
    const std::vector<TraceEvent>& events);

}  // namespace samples
