#include "launcher/doctor/hosts/way_hub.h"

#include <algorithm>

#include "launcher/names/host_name.h"

namespace launcher {
namespace {

// More than a packet of any network, so that a way on which only short ones
// arrive shows.
constexpr int64_t kReachBytes = 256 * 1024;
constexpr int64_t kMeasuredBytes = 16 * 1024 * 1024;

WayHub::Actions refusal(WayHub::Connection to, const std::string& text) {
  return {WayHub::Send{to, WayRefusal{text}}, WayHub::Drop{to}};
}

}  // namespace

WayHub::WayHub(Options options, Time now)
    : options_(std::move(options)),
      begin_(now),
      deadline_(now + options_.wait) {
  facts_.has_all = true;
}

WayHub::Actions WayHub::on_message(Connection from,
                                   const std::string& here,
                                   const WayMessage& message,
                                   Time now) {
  if (const auto* hello = std::get_if<WayHello>(&message)) {
    return take(from, here, *hello, now);
  }
  Actions actions;
  if (const auto* results = std::get_if<WayResults>(&message)) {
    take(from, *results);
    go_on(actions, now);
  }
  return actions;
}

WayHub::Actions WayHub::take(Connection from,
                             const std::string& here,
                             const WayHello& hello,
                             Time now) {
  const std::string reason =
      refusal_of(hello.hello, options_.admission, roster());
  const JobTerms& terms = options_.admission.terms;
  if (!reason.empty()) {
    return refusal(from, reason);
  }
  if (!hello.address.empty() && !is_address(hello.address)) {
    return refusal(from,
                   "expected an IP address of host " + hello.hello.host +
                       ", but got \"" + hello.address + "\"");
  }
  if (phase_ != Phase::gathering ||
      guests_.size() >= static_cast<size_t>(terms.most_hosts)) {
    return refusal(from,
                   "the hosts that --doctor looks at have met without this "
                   "one; start it on all hosts again");
  }
  guests_[from] = {hello, here, arrivals_++};
  Actions actions;
  const auto count = static_cast<int>(guests_.size());
  if (count == terms.most_hosts) {
    start(actions, now);
  } else if (count >= terms.least_hosts) {
    deadline_ = std::min(deadline_, now + options_.last_call);
  }
  return actions;
}

Roster WayHub::roster() const {
  Roster roster;
  for (const auto& [connection, guest] : guests_) {
    roster[connection].hello = guest.hello.hello;
  }
  return roster;
}

void WayHub::start(Actions& actions, Time now) {
  const JobTerms& terms = options_.admission.terms;
  if (static_cast<int>(guests_.size()) < terms.most_hosts) {
    facts_.waited_seconds = static_cast<int>(
        std::chrono::ceil<std::chrono::seconds>(now - begin_).count());
  }
  for (const auto& [connection, guest] : guests_) {
    order_.push_back(connection);
  }
  const auto place_of = [&](Connection connection) {
    const Guest& guest = guests_[connection];
    const auto& rank = guest.hello.hello.wanted_rank;
    return std::pair(terms.ranks_are_fixed ? rank.value_or(0) : 0,
                     guest.arrival);
  };
  std::sort(order_.begin(), order_.end(), [&](Connection a, Connection b) {
    return place_of(a) < place_of(b);
  });
  const auto count = static_cast<int>(order_.size());
  for (int number = 0; number < count; ++number) {
    Guest& guest = guests_[order_[static_cast<size_t>(number)]];
    guest.number = number;
    const Hello& hello = guest.hello.hello;
    facts_.hosts.push_back(
        {hello.host,
         guest.hello.address,
         terms.ranks_are_fixed ? hello.wanted_rank : std::nullopt});
    for (int to = 0; to < count; ++to) {
      facts_.ways.push_back({.from = number, .to = to});
    }
  }
  const auto own = guests_.find(kOwn);
  facts_.own = own == guests_.end() ? 0 : own->second.number;
  // Others see this host by the connection that they have to it.
  for (const auto& [connection, guest] : guests_) {
    std::string& address =
        facts_.hosts[static_cast<size_t>(facts_.own)].address;
    if (address.empty() && connection != kOwn) {
      address = guest.here;
    }
  }
  phase_ = Phase::rounds;
  begin_ = now;
  start_round(0, actions, now);
}

void WayHub::start_round(int round, Actions& actions, Time now) {
  const auto count = static_cast<int>(order_.size());
  for (round_ = round; round_ < std::max(count, 1); ++round_) {
    if (round_ > 0 && now - begin_ > kMeasuringTime) {
      break;
    }
    for (const auto& [connection, guest] : guests_) {
      WayOrder order = order_for(guest);
      if (!order.targets.empty()) {
        awaited_.insert(connection);
        actions.push_back(Send{connection, std::move(order)});
      }
    }
    if (!awaited_.empty()) {
      deadline_ = now + kRoundTime;
      return;
    }
  }
  finish(actions);
}

WayOrder WayHub::order_for(const Guest& guest) const {
  WayOrder order{.round = round_,
                 .bytes = round_ == 0 ? kReachBytes : kMeasuredBytes,
                 .targets = {}};
  const auto count = static_cast<int>(order_.size());
  for (const auto& [connection, other] : guests_) {
    const bool is_meant =
        round_ == 0
            ? other.number != guest.number
            : other.number == (guest.number + round_) % count &&
                  way(guest.number, other.number).fault == WayFault::none;
    if (is_meant) {
      const std::string& address = other.hello.address;
      order.targets.push_back(
          {.host = other.number,
           .id = other.hello.hello.id,
           .address = address.empty() ? guest.here : address,
           .port = other.hello.port});
    }
  }
  return order;
}

void WayHub::take(Connection from, const WayResults& results) {
  const auto guest = guests_.find(from);
  if (guest == guests_.end() || results.round != round_ ||
      awaited_.erase(from) == 0) {
    return;
  }
  const auto count = static_cast<int>(order_.size());
  for (const WayFacts& given : results.ways) {
    if (given.to >= count || given.to == guest->second.number) {
      continue;
    }
    WayFacts& known = way(guest->second.number, given.to);
    known = merged(known, given);
    known.from = guest->second.number;
  }
}

WayHub::Actions WayHub::on_closed(Connection from, Time now) {
  Actions actions;
  if (guests_.count(from) > 0) {
    lose(from);
    go_on(actions, now);
  }
  return actions;
}

void WayHub::lose(Connection connection) {
  if (phase_ == Phase::rounds) {
    facts_.lost.push_back(guests_[connection].hello.hello.host);
  }
  awaited_.erase(connection);
  guests_.erase(connection);
}

WayHub::Actions WayHub::on_time(Time now) {
  Actions actions;
  if (now < deadline_) {
    return actions;
  }
  if (phase_ == Phase::gathering) {
    start(actions, now);
  } else if (phase_ == Phase::rounds) {
    for (const Connection silent : std::set(awaited_)) {
      lose(silent);
      actions.push_back(Drop{silent});
    }
    go_on(actions, now);
  }
  return actions;
}

void WayHub::go_on(Actions& actions, Time now) {
  if (phase_ == Phase::rounds && awaited_.empty()) {
    start_round(round_ + 1, actions, now);
  }
}

void WayHub::finish(Actions& actions) {
  phase_ = Phase::done;
  for (const auto& [connection, guest] : guests_) {
    if (connection != kOwn) {
      actions.push_back(Send{
          connection,
          WayFarewell{
              facts_.hosts, guest.number, facts_.waited_seconds, facts_.lost}});
      actions.push_back(Drop{connection});
    }
  }
}

HostsFacts WayHub::facts() const {
  HostsFacts facts = facts_;
  facts.ways.clear();
  for (const WayFacts& each : facts_.ways) {
    if (each.from != each.to) {
      facts.ways.push_back(each);
    }
  }
  return facts;
}

WayFacts& WayHub::way(int from, int to) {
  return facts_.ways[static_cast<size_t>(from) * order_.size() +
                     static_cast<size_t>(to)];
}

const WayFacts& WayHub::way(int from, int to) const {
  return facts_.ways[static_cast<size_t>(from) * order_.size() +
                     static_cast<size_t>(to)];
}

}  // namespace launcher
