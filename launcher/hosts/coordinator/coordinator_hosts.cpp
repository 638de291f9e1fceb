#include <algorithm>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/base/patience_text.h"
#include "launcher/hosts/coordinator/admission.h"
#include "launcher/hosts/coordinator/coordinator.h"

// Hosts that come, say something, and go.
namespace launcher {

using Change = WorldBroken::Change;

namespace {

// For a host whose connection has ended to come back: it begins at once, and a
// killed one is missed after so long.
constexpr std::chrono::seconds kReturn{2};

}  // namespace

void Coordinator::welcome(Connection from, const Hello& hello) {
  const bool is_over = phase_ == Phase::closing || phase_ == Phase::done;
  if (is_over && known_ids_.count(hello.id) == 0) {
    // A host of the next job at this endpoint: it tries again, and the exit
    // code of this job is not its own.
    actions_.push_back(Drop{from});
    return;
  }
  const std::string refusal =
      refusal_of(hello,
                 {.terms = options_.terms,
                  .token = options_.token,
                  .keep_alive = options_.patience.keep_alive},
                 hosts_);
  if (!refusal.empty()) {
    actions_.push_back(Send{from, RendezvousLost{refusal}});
    actions_.push_back(Drop{from});
    return;
  }
  const auto holder = holder_of_rank(hello, options_.terms, hosts_);
  if (holder != hosts_.end()) {
    if (is_there(*holder)) {
      actions_.push_back(
          Send{from, RendezvousLost{rank_taken_text(hello, holder->second)}});
    }
    actions_.push_back(Drop{from});  // else it tries again
    return;
  }
  if (hosts_.count(from) > 0) {
    return;
  }
  known_ids_.insert(hello.id);
  const auto known =
      std::find_if(hosts_.begin(), hosts_.end(), [&](const auto& entry) {
        return entry.second.hello.id == hello.id;
      });
  if (known == hosts_.end()) {
    const auto lost =
        std::find_if(lost_.begin(), lost_.end(), [&](const WorldBroken& gone) {
          return gone.host == hello.host;
        });
    lost_.erase(lost, lost == lost_.end() ? lost : lost + 1);
    hosts_.emplace(
        from,
        KnownHost{.hello = hello, .last_heard = now_, .arrival = ++arrivals_});
    return;
  }
  if (!known->second.away_since) {
    // The end of its old connection has not been seen yet.
    actions_.push_back(Drop{known->first});
  }
  auto host = hosts_.extract(known);
  host.key() = from;
  end_absence(host.mapped());
  hosts_.insert(std::move(host));
}

/// Whether a host lives whose rank another one wants, which can be its next
/// ddprun: known once it has been heard since it was first asked.
bool Coordinator::is_there(HostTable::value_type& entry) {
  KnownHost& host = entry.second;
  if (entry.first == kOwn) {
    return true;
  }
  if (!host.contested_since ||
      now_ - *host.contested_since > options_.patience.silence()) {
    host.contested_since = now_;
  }
  const bool was_heard = host.last_heard > *host.contested_since;
  if (was_heard) {
    host.contested_since.reset();
  }
  return was_heard;
}

void Coordinator::take(Connection from, const HostState& state) {
  const auto found = hosts_.find(from);
  if (found == hosts_.end()) {
    actions_.push_back(Drop{from});  // it begins again, with a Hello
    return;
  }
  KnownHost& host = found->second;
  host.last_heard = now_;
  if (state.number <= host.state.number) {
    return;
  }
  tally_ -= counts_of(host, generation_);
  host.state = state;
  if (has_world() && host.seat) {
    take_of_present(host);
  } else if (phase_ == Phase::running && state.joins &&
             tally_.seated < options_.terms.most_hosts && !has_success_) {
    break_world({Change::joined, host.hello.host});
  }
  tally_ += counts_of(host, generation_);
}

void Coordinator::take_of_present(KnownHost& host) {
  if (!host.is_in(generation_)) {
    return;
  }
  const auto* failed = host.state.outcome
                           ? std::get_if<HostFailed>(&*host.state.outcome)
                           : nullptr;
  if (failed != nullptr) {
    fail(host, *failed);
    return;
  }
  if (phase_ == Phase::judging) {
    return;  // what else it says changes nothing
  }
  if (host.state.joins && host.state.outcome) {
    host.seat.reset();  // it has lost sight of us after its part was done
  } else if (host.state.joins) {
    // It has lost sight of us for a while, and stopped its workers.
    break_world({Change::vanished, host.hello.host});
  } else if (host.state.outcome) {
    has_success_ = true;
  }
}

void Coordinator::fail(const KnownHost& host, const HostFailed& failure) {
  if (!first_failure_) {
    first_failure_ = {host.hello.id, host.hello.host, failure};
  }
  if (phase_ == Phase::running) {
    phase_ = Phase::judging;
    judging_since_ = now_;
    tell_all_ = true;
  }
}

void Coordinator::judge_failure() {
  const ToldFailure& first = *first_failure_;
  const HostFailed& failure = first.failure;
  if (failure.is_final || !budget_.allows(restarts_, now_)) {
    close(failure.status.shell_code(),
          "rank " + std::to_string(failure.rank) + " on host " + first.host +
              " failed: " + failure.status.text());
    closed_.first = FirstFailure{failure.rank, first.host};
    return;
  }
  ++restarts_;
  failed_id_ = first.id;
  break_world({Change::failed, first.host}, budget_.spend(now_));
}

bool Coordinator::waits_for_silent_host() const {
  return std::any_of(hosts_.begin(), hosts_.end(), [this](const auto& entry) {
    const KnownHost& host = entry.second;
    return entry.first != kOwn && is_unheard(host, generation_) &&
           (host.away_since || host.last_heard <= judging_since_);
  });
}

void Coordinator::begin_absence(HostTable::iterator away,
                                const std::string& how) {
  if (phase_ == Phase::closing || phase_ == Phase::done) {
    remove(away, Change::vanished);  // it was told that the job is closed
    return;
  }
  KnownHost& host = away->second;
  tally_ -= counts_of(host, generation_);
  host.away_since = now_;
  host.how_lost = "its connection has ended" + (how.empty() ? "" : ": " + how);
  tally_ += counts_of(host, generation_);
  next_missed_ = std::min(next_missed_, missed_at(host));
}

void Coordinator::end_absence(KnownHost& host) {
  tally_ -= counts_of(host, generation_);
  host.away_since.reset();
  host.last_heard = now_;
  tally_ += counts_of(host, generation_);
}

Coordinator::Time Coordinator::missed_at(const KnownHost& host) const {
  const Time silent = host.last_heard + options_.patience.silence();
  return host.away_since ? std::min(silent, *host.away_since + kReturn)
                         : silent;
}

void Coordinator::remove(HostTable::iterator gone,
                         Change change,
                         const std::string& how) {
  const Connection connection = gone->first;
  const KnownHost host = std::move(gone->second);
  const WorldBroken lost{change, host.hello.host, how};
  hosts_.erase(gone);
  tally_ -= counts_of(host, generation_);
  if (connection == kOwn) {
    if (phase_ == Phase::judging) {
      judge_failure();
    }
    if (phase_ == Phase::gathering || phase_ == Phase::running) {
      close(kExitFailure,
            "host " + host.hello.host +
                ", at which the hosts of the job meet, has left");
    }
  }
  if (host.seat) {
    lost_.push_back(lost);
  }
  if (phase_ == Phase::gathering && host.seat) {
    broken_ = lost;  // why it may be hopeless
  }
  if (phase_ == Phase::running && host.seat &&
      !host.has_succeeded_in(generation_)) {
    break_world(lost);
  }
  if (phase_ == Phase::judging && change == Change::vanished &&
      is_unheard(host, generation_) && !host.has_succeeded_in(generation_)) {
    break_world(lost);  // of which the failure that was told may come
  }
}

void Coordinator::remove_missed() {
  if (now_ < next_missed_) {
    return;
  }
  const auto silence = options_.patience.silence();
  next_missed_ = now_ + silence;
  for (auto next = hosts_.begin(); next != hosts_.end();) {
    const auto host = next++;
    if (host->first == kOwn) {
      continue;
    }
    const Time missed = missed_at(host->second);
    if (now_ < missed) {
      next_missed_ = std::min(next_missed_, missed);
      continue;
    }
    if (!host->second.away_since) {
      actions_.push_back(Drop{host->first});
    }
    remove(host,
           Change::vanished,
           host->second.away_since ? host->second.how_lost
                                   : "silent for " + patience_text(silence));
  }
}

}  // namespace launcher
