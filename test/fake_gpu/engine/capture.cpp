#include "test/fake_gpu/engine/capture.h"

#include <algorithm>
#include <utility>

namespace fake_gpu {

bool covers(const Past& whole, const Past& past) {
  return std::all_of(past.begin(), past.end(), [&](const auto& item) {
    const auto place = whole.find(item.first);
    return item.second <= (place == whole.end() ? 0 : place->second);
  });
}

bool Capture::contains(int device, Stream::Kind kind) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& item) {
    return item.first->device == device && item.first->kind == kind;
  });
}

bool Capture::contains(int device) const {
  return contains(device, Stream::Kind::blocking) ||
         contains(device, Stream::Kind::non_blocking);
}

void Capture::add(Stream* stream, Launch launch) {
  Past& past = streams_.at(stream);
  graph_.push_back({stream, past, std::move(launch)});
  ++past[stream];
}

void Capture::wait(Stream* stream, const Past& past) {
  Past& own = streams_[stream];
  for (const auto& [other, count] : past) {
    own[other] = std::max(own[other], count);
  }
}

bool Capture::is_joined() const {
  const Past& end = past_of(origin);
  return std::all_of(streams_.begin(), streams_.end(), [&](const auto& item) {
    return covers(end, item.second);
  });
}

}  // namespace fake_gpu
