#include "ddp/job/detail/peer_state.h"

#include <algorithm>
#include <utility>

namespace ddp::detail {
namespace {

std::optional<Departure> first_of(const std::vector<Departure>& order,
                                  const std::vector<int>& ranks) {
  for (const auto& departure : order) {
    if (std::count(ranks.begin(), ranks.end(), departure.rank) > 0) {
      return departure;
    }
  }
  return std::nullopt;
}

template <class Order>
auto find_rank(Order& order, int rank) {
  return std::find_if(order.begin(), order.end(), [rank](const auto& one) {
    return one.rank == rank;
  });
}

bool adds_to(const std::vector<Departure>& order,
             std::vector<Departure>::const_iterator known,
             const Departure& departure) {
  return known == order.end() ||
         (known->how == Departure::How::destroyed &&
          departure.how == Departure::How::vanished && !departure.has_closed);
}

}  // namespace

bool PeerState::add_departure(const Departure& departure) {
  const std::lock_guard lock(mutex_);
  const auto known = find_rank(order_, departure.rank);
  const bool is_news = adds_to(order_, known, departure);
  if (known == order_.end()) {
    order_.push_back(departure);
    departures_.store(static_cast<int>(order_.size()),
                      std::memory_order_release);
  } else if (is_news) {
    known->how = departure.how;
    known->started.clear();
  } else {
    known->has_closed = known->has_closed || departure.has_closed;
  }
  changed_.notify_all();
  return is_news;
}

bool PeerState::is_news(const Departure& departure) const {
  const std::lock_guard lock(mutex_);
  return adds_to(order_, find_rank(order_, departure.rank), departure);
}

std::optional<Departure> PeerState::departure_of(int rank) const {
  return first_departure({rank});
}

std::vector<Departure> PeerState::all_departures() const {
  const std::lock_guard lock(mutex_);
  return order_;
}

std::optional<Departure> PeerState::first_departure(
    const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  return first_of(order_, ranks);
}

std::optional<Departure> PeerState::wait_for_departure(
    const std::vector<int>& ranks, std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(
      lock, timeout, [&] { return first_of(order_, ranks).has_value(); });
  return first_of(order_, ranks);
}

std::optional<Departure> PeerState::wait_for_failure(
    std::chrono::milliseconds timeout) const {
  const auto find = [this] {
    return std::find_if(order_.begin(), order_.end(), [](const auto& one) {
      return one.how != Departure::How::destroyed;
    });
  };
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return find() != order_.end(); });
  const auto found = find();
  return found == order_.end() ? std::nullopt : std::optional(*found);
}

void PeerState::wait_for_departures(int count,
                                    std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(
      lock, timeout, [&] { return static_cast<int>(order_.size()) >= count; });
}

size_t PeerState::add_check(Check check) {
  const std::lock_guard lock(mutex_);
  checks_.emplace(next_check_, std::move(check));
  return next_check_++;
}

void PeerState::remove_check(size_t id) {
  const std::lock_guard lock(mutex_);
  checks_.erase(id);
}

std::vector<std::string> PeerState::run_checks(
    std::chrono::milliseconds patience) {
  std::map<size_t, Check> checks;
  {
    const std::lock_guard lock(mutex_);
    checks.swap(checks_);
  }
  std::vector<std::string> answers;
  for (const auto& [id, check] : checks) {
    if (auto answer = check(patience); !answer.empty()) {
      answers.push_back(std::move(answer));
    }
  }
  return answers;
}

}  // namespace ddp::detail
