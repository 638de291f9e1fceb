#pragma once

#include <random>
#include <set>
#include <vector>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/engine/stream.h"

namespace fake_gpu {

using Random = std::mt19937_64;

/// The streams that must go on for every demand to be met: those with one, and
/// those that they wait for.
std::set<Stream*> needed_streams(const std::vector<Stream*>& streams);

/// What to look at when choosing.
struct Choice {
  Mode mode = Mode::priority;
  Clock::time_point now;
  bool overdue = false;  // nobody asked for long: a GPU would have run it all
};

/// The stream whose first operation is to run now, or null. Decides only: all
/// it changes is the random numbers and, in priority mode, a priority.
///
/// A missing wait shows where an operation runs before one it needs, so each
/// mode holds back something else: lazy what nobody waits for, priority what
/// has a low one. Neither finds all: see README.md.
Stream* choose(const std::vector<Stream*>& streams,
               const Choice& choice,
               Random& random);

}  // namespace fake_gpu
