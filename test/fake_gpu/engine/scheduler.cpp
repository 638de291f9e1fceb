#include "test/fake_gpu/engine/scheduler.h"

#include <algorithm>

namespace fake_gpu {
namespace {

// Number of attempts of a collective, which waits for its peers in real time,
// before streams of lower priority may run.
constexpr int kPatience = 20;

bool can_start(const Stream& stream) {
  return !stream.queue.empty() && reached(stream.queue.front().after);
}

bool rests(const Stream& stream, Clock::time_point now) {
  return stream.resting > now;
}

Stream* highest_priority(const std::vector<Stream*>& streams,
                         Clock::time_point now,
                         Random& random) {
  Stream* best = nullptr;
  for (Stream* stream : streams) {
    const bool gave_up = rests(*stream, now) && stream->refusals >= kPatience;
    if (!gave_up && (best == nullptr || stream->priority > best->priority)) {
      best = stream;
    }
  }
  if (best == nullptr || rests(*best, now)) {
    return nullptr;
  }
  if (random() % 64 == 0) {
    best->priority = random();
  }
  return best;
}

Stream* any_of(const std::vector<Stream*>& streams,
               Clock::time_point now,
               Random& random) {
  std::vector<Stream*> awake;
  for (Stream* stream : streams) {
    if (!rests(*stream, now)) {
      awake.push_back(stream);
    }
  }
  return awake.empty() ? nullptr : awake[random() % awake.size()];
}

}  // namespace

std::set<Stream*> needed_streams(const std::vector<Stream*>& streams) {
  std::vector<Stream*> open;
  for (Stream* stream : streams) {
    if (!stream->reached(stream->demanded)) {
      open.push_back(stream);
    }
  }
  std::set<Stream*> needed;
  while (!open.empty()) {
    Stream* stream = open.back();
    open.pop_back();
    if (!needed.insert(stream).second || stream->queue.empty()) {
      continue;
    }
    const Point& after = stream->queue.front().after;
    if (!reached(after)) {
      open.push_back(after.stream);
    }
  }
  return needed;
}

Stream* choose(const std::vector<Stream*>& streams,
               const Choice& choice,
               Random& random) {
  const auto needed = needed_streams(streams);
  const bool everything =
      choice.mode == Mode::eager || choice.overdue ||
      (!needed.empty() && (choice.mode == Mode::priority ||
                           (choice.mode == Mode::mixed && random() % 4 == 0)));
  std::vector<Stream*> candidates;
  for (Stream* stream : streams) {
    if (can_start(*stream) && (everything || needed.count(stream) > 0)) {
      candidates.push_back(stream);
    }
  }
  return choice.mode == Mode::priority
             ? highest_priority(candidates, choice.now, random)
             : any_of(candidates, choice.now, random);
}

}  // namespace fake_gpu
