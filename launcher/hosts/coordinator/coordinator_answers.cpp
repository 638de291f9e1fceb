#include <utility>

#include "launcher/hosts/coordinator/coordinator.h"
#include "launcher/hosts/protocol/waiting_text.h"

// What each host is told.
namespace launcher {
namespace {

bool is_loopback_text(const std::string& address) {
  return address == "::1" || address.rfind("127.", 0) == 0;
}

/// "fe80::1" of "fe80::1%eth0": each host has names of its own.
std::string without_interface(const std::string& address) {
  return address.substr(0, address.find('%'));
}

}  // namespace

void Coordinator::answer(Connection connection, const KnownHost& host) {
  if (host.away_since) {
    return;
  }
  const HostState& state = host.state;
  const bool is_its_failure =
      host.hello.id == failed_id_ && state.generation == generation_;
  Noted noted{waits_for(host)};
  if (phase_ == Phase::judging && is_unheard(host, generation_)) {
    noted.ends = generation_;
  }
  if (is_behind_other_address(connection, host)) {
    noted.seen_address = host.hello.seen_address;
  }
  Message message = std::move(noted);
  if (phase_ == Phase::done || phase_ == Phase::closing) {
    if (phase_ == Phase::done || connection != kOwn) {
      message = closed_;
    }
  } else if (state.joins) {
    if (phase_ == Phase::running && host.seat && !host.is_in(generation_)) {
      message = WorldFormed{*host.seat};
    }
  } else if (state.generation >= 0 && !is_its_failure &&
             !(has_world() && host.seat && host.is_in(generation_))) {
    message = Broken{state.generation, broken_};
  }
  actions_.push_back(Send{connection, std::move(message)});
}

/// The others may not reach rank 0's store, as behind NAT.
bool Coordinator::is_behind_other_address(Connection connection,
                                          const KnownHost& host) const {
  const bool is_rank_0 = phase_ == Phase::running && host.seat &&
                         host.is_in(generation_) && host.seat->host_rank == 0 &&
                         host.seat->host_count > 1;
  const std::string& seen = host.hello.seen_address;
  const std::string& named = host.state.store.host;
  return is_rank_0 && connection != kOwn && !options_.terms.ranks_are_fixed &&
         !seen.empty() && !is_loopback_text(seen) && !is_loopback_text(named) &&
         without_interface(seen) != without_interface(named);
}

std::string Coordinator::waits_for(const KnownHost& host) const {
  const bool is_done = host.seat && host.has_succeeded_in(generation_);
  if (phase_ == Phase::gathering && host.state.joins) {
    return gathering_.describe(hosts_, tally_.joined, lost_, now_) +
           loopback_hint();
  }
  if (phase_ == Phase::running && is_done) {
    return wait_for_others_text(
        hosts_, tally_.seated - tally_.succeeded, generation_);
  }
  return phase_ == Phase::running && host.state.joins && !host.seat
             ? wait_for_place_text(has_success_)
             : "";
}

/// Hosts that have once met do reach each other.
std::string Coordinator::loopback_hint() const {
  const bool is_one_missing =
      generation_ < 0 && static_cast<int>(hosts_.size()) < options_.start_hosts;
  return is_one_missing ? loopback_text(options_.loopback_place) : "";
}

}  // namespace launcher
