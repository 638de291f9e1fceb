#pragma once

#include <random>
#include <set>
#include <vector>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/engine/stream.h"

namespace fake_gpu {

using Random = std::mt19937_64;

/// Returns the streams that must proceed to satisfy every demand: streams with
/// a demand, and streams for which they wait.
std::set<Stream*> needed_streams(const std::vector<Stream*>& streams);

/// Inputs of a choice.
struct Choice {
  Mode mode = Mode::priority;
  Clock::time_point now;
  // No call for a long time: run all queued work, as a GPU would.
  bool overdue = false;
};

/// Returns the stream with the first operation to run now, or null. Changes
/// only the random numbers and, in priority mode, a priority.
///
/// A missing wait has an effect if an operation runs before another one that it
/// needs. Each mode therefore delays other operations: lazy delays operations
/// that no wait needs, priority delays operations of low priority. No single
/// mode detects all missing waits: see README.md.
Stream* choose(const std::vector<Stream*>& streams,
               const Choice& choice,
               Random& random);

}  // namespace fake_gpu
