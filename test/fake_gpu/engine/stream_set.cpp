#include "test/fake_gpu/engine/stream_set.h"

#include <algorithm>
#include <utility>

#include "test/fake_gpu/log.h"

namespace fake_gpu {
namespace {

// Interval of the checks for changes without a call: demands of peers, idle
// time.
constexpr auto kLook = std::chrono::milliseconds(1);

bool wait_for_each_other(const Stream& a, const Stream& b) {
  return a.device == b.device && a.kind != Stream::Kind::non_blocking &&
         b.kind != Stream::Kind::non_blocking &&
         (a.kind == Stream::Kind::legacy) != (b.kind == Stream::Kind::legacy);
}

}  // namespace

Stream* StreamSet::default_stream(int device) {
  Stream*& stream = default_streams_[device];
  if (stream == nullptr) {
    stream = create(device, Stream::Kind::legacy);
  }
  return stream;
}

Stream* StreamSet::create(int device, Stream::Kind kind) {
  auto* stream = new Stream;
  stream->id = static_cast<int>(streams_.size());
  stream->device = device;
  stream->kind = kind;
  stream->priority = random_();
  streams_.push_back(stream);
  return stream;
}

Point StreamSet::add(Stream* stream, Operation operation) {
  for (Stream* other : streams_) {
    if (wait_for_each_other(*stream, *other)) {
      add_wait(stream, other->last());
    }
  }
  return append(stream, std::move(operation));
}

void StreamSet::add_wait(Stream* stream, const Point& point) {
  if (!reached(point)) {
    append(stream, Operation{"wait for " + name_of(point), nullptr, point, {}});
  }
}

Point StreamSet::append(Stream* stream, Operation operation) {
  const Point point{stream, ++stream->queued};
  if (tracing()) {
    say("queue " + name_of(point) + ": " + operation.label);
  }
  stream->queue.push_back(std::move(operation));
  return point;
}

void StreamSet::demand(const Point& point) {
  auto& demanded = point.stream->demanded;
  demanded = std::max(demanded, point.number);
}

void StreamSet::demand_what_peers_want() {
  for (Stream* stream : streams_) {
    uint64_t number = stream->done;
    for (const Operation& operation : stream->queue) {
      ++number;
      if (operation.wanted && number > stream->demanded && operation.wanted()) {
        stream->demanded = number;
        break;
      }
    }
  }
}

Stream* StreamSet::choose_next(const Choice& choice) {
  return choose(streams_, choice, random_);
}

Clock::time_point StreamSet::next_look(Clock::time_point now) const {
  auto time = Clock::time_point::max();
  for (const Stream* stream : streams_) {
    if (!stream->queue.empty()) {
      const bool rests = stream->resting > now;
      time = std::min(time, rests ? stream->resting : now + kLook);
    }
  }
  return time;
}

std::vector<Point> StreamSet::ends_of(int device) const {
  std::vector<Point> ends;
  for (Stream* stream : streams_) {
    if (device < 0 || stream->device == device) {
      ends.push_back(stream->last());
    }
  }
  return ends;
}

void StreamSet::reseed(uint64_t seed) {
  random_.seed(seed);
  for (Stream* stream : streams_) {
    stream->priority = random_();
  }
}

}  // namespace fake_gpu
