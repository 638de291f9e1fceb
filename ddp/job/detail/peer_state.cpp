#include "ddp/job/detail/peer_state.h"

#include <algorithm>

namespace ddp::detail {
namespace {

std::string count_passes(int64_t count) {
  return std::to_string(count) +
         (count == 1 ? " backward pass" : " backward passes");
}

std::string how_it_left(const Departure& departure) {
  const std::string rank = "rank " + std::to_string(departure.rank);
  switch (departure.how) {
    case Departure::How::left:
      return rank + " has left by ddp::destroy_process_group()";
    case Departure::How::threw:
      return rank + " has left " +
             (departure.group.empty() ? "" : "group " + departure.group + " ") +
             "because of an exception";
    default:
      return "the process of " + rank +
             " has ended without ddp::destroy_process_group()";
  }
}

}  // namespace

std::string describe(const Departure& departure, int64_t passes) {
  std::string text = how_it_left(departure);
  const bool are_trained = departure.passes > 0 || passes > 0;
  if (are_trained && departure.passes >= 0) {
    text += " after " + count_passes(departure.passes);
  }
  if (are_trained) {
    text += "; this rank has begun " + count_passes(passes);
  }
  return departure.text.empty() ? text : text + "; it says: " + departure.text;
}

void PeerState::add_departure(const Departure& departure) {
  {
    const std::lock_guard lock(mutex_);
    if (!(departure.group.empty()
              ? of_rank_.emplace(departure.rank, order_.size()).second
              : of_group_.emplace(departure.group, order_.size()).second)) {
      return;
    }
    order_.push_back(departure);
    departures_.store(static_cast<int>(order_.size()),
                      std::memory_order_release);
  }
  changed_.notify_all();
}

std::optional<Departure> PeerState::departure_of(int rank) const {
  return first_departure({rank});
}

std::optional<Departure> PeerState::first_departure(
    const std::vector<int>& ranks,
    std::chrono::milliseconds timeout,
    const std::string& group) const {
  std::optional<size_t> first;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] {
    if (const auto found = of_group_.find(group); found != of_group_.end()) {
      first = found->second;
    }
    for (const int rank : ranks) {
      const auto found = of_rank_.find(rank);
      if (found != of_rank_.end() && (!first || found->second < *first)) {
        first = found->second;
      }
    }
    return first.has_value();
  });
  return first ? std::optional(order_[*first]) : std::nullopt;
}

}  // namespace ddp::detail
