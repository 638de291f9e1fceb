#include "launcher/coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include "launcher/coordinator/admission.h"
#include "launcher/error.h"
#include "launcher/overloaded.h"

namespace launcher {
namespace {

using Change = WorldBroken::Change;

// For the hosts to hear that the job is closed.
constexpr std::chrono::seconds kFarewell{5};

}  // namespace

Coordinator::Coordinator(Options options, Time now)
    : options_(std::move(options)),
      next_silence_(now + options_.patience.silence()),
      now_(now),
      closing_since_(now),
      gathering_(options_.terms,
                 options_.patience,
                 options_.past.host_count > 0 ? options_.past.host_count
                                              : options_.start_hosts,
                 now),
      last_host_count_(options_.past.host_count),
      generation_(options_.past.generation),
      restarts_(options_.past.restarts),
      budget_(options_.terms.max_restarts, options_.terms.restart_rules),
      has_lost_(options_.past.lost.has_value()),
      broken_(options_.past.lost.value_or(
          WorldBroken{Change::vanished, "where the hosts meet"})) {
  budget_.resume(options_.past.restart_ages, now);
}

Coordinator::Past Coordinator::past(Time now) const {
  return {.generation = generation_,
          .host_count = last_host_count_,
          .restarts = restarts_,
          .restart_ages = budget_.ages(now)};
}

Coordinator::Actions Coordinator::on_message(Connection from,
                                             const Message& message,
                                             Time now) {
  advance(now);
  std::visit(Overloaded{[&](const Hello& hello) { welcome(from, hello); },
                        [&](const HostState& state) { take(from, state); },
                        [&](const Goodbye&) {
                          const auto found = hosts_.find(from);
                          if (found != hosts_.end()) {
                            remove(found, Change::left);
                          }
                          actions_.push_back(Drop{from});
                        },
                        [&](const auto&) { actions_.push_back(Drop{from}); }},
             message);
  return settle(from);
}

Coordinator::Actions Coordinator::on_closed(Connection connection, Time now) {
  advance(now);
  const auto found = hosts_.find(connection);
  if (found != hosts_.end()) {
    remove(found, Change::vanished);
  }
  return settle(std::nullopt);
}

Coordinator::Actions Coordinator::on_time(Time now) {
  advance(now);
  return settle(std::nullopt);
}

Coordinator::Time Coordinator::next_deadline() const {
  Time deadline = now_ + options_.patience.keep_alive;
  const auto consider = [&](Time time) {
    deadline = time > now_ ? std::min(deadline, time) : deadline;
  };
  if (phase_ == Phase::closing) {
    consider(closing_since_ + kFarewell);
  }
  if (phase_ == Phase::gathering) {
    consider(gathering_.next_deadline(now_));
  }
  consider(next_silence_);
  return deadline;
}

void Coordinator::advance(Time now) {
  now = std::max(now, now_);
  const auto passed = now - now_;
  if (passed > 2 * options_.patience.keep_alive) {
    // It was this process that slept, which counts against nobody: what hosts
    // have sent meanwhile is still to be read.
    gathering_.delay(passed, now);
    closing_since_ += passed;
    for (auto& [connection, host] : hosts_) {
      host.last_heard += passed;
    }
  }
  now_ = now;
}

Coordinator::Actions Coordinator::settle(std::optional<Connection> asker) {
  remove_silent();
  form_or_give_up();
  if (phase_ == Phase::running && tally_.succeeded == tally_.seated) {
    close(0, "");
  }
  finish_closing();
  const bool is_for_all = std::exchange(tell_all_, false);
  const auto found = asker ? hosts_.find(*asker) : hosts_.end();
  if (!is_for_all && found != hosts_.end()) {
    answer(found->first, found->second);
  }
  for (auto next = hosts_.begin(); is_for_all && next != hosts_.end(); ++next) {
    answer(next->first, next->second);
  }
  return std::exchange(actions_, {});
}

void Coordinator::welcome(Connection from, const Hello& hello) {
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
  if (hosts_.count(from) > 0) {
    return;
  }
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
  // The end of its old connection has not been seen yet.
  actions_.push_back(Drop{known->first});
  auto host = hosts_.extract(known);
  host.key() = from;
  host.mapped().last_heard = now_;
  hosts_.insert(std::move(host));
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
  tally_ -= tally_of(host, generation_);
  host.state = state;
  if (phase_ == Phase::running && host.seat) {
    take_of_present(host);
  } else if (phase_ == Phase::running && state.joins &&
             tally_.seated < options_.terms.most_hosts && !has_success_) {
    break_world(Change::joined, host.hello.host);
  }
  tally_ += tally_of(host, generation_);
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
  } else if (host.state.joins && host.state.outcome) {
    host.seat.reset();  // it has lost sight of us after its part was done
  } else if (host.state.joins) {
    // It has lost sight of us for a while, and stopped its workers.
    break_world(Change::vanished, host.hello.host);
  } else if (host.state.outcome) {
    has_success_ = true;
  }
}

void Coordinator::fail(const KnownHost& host, const HostFailed& failure) {
  if (failure.is_final || !budget_.allows(restarts_, now_)) {
    close(failure.status.shell_code(),
          "rank " + std::to_string(failure.rank) + " on host " +
              host.hello.host + " failed: " + failure.status.text());
    return;
  }
  ++restarts_;
  failed_id_ = host.hello.id;
  break_world(Change::failed, host.hello.host, budget_.spend(now_));
}

void Coordinator::remove(Roster::iterator gone, Change change) {
  const Connection connection = gone->first;
  const KnownHost host = std::move(gone->second);
  hosts_.erase(gone);
  tally_ -= tally_of(host, generation_);
  if (connection == kOwn) {
    if (phase_ == Phase::gathering || phase_ == Phase::running) {
      close(kExitFailure,
            "host " + host.hello.host +
                ", at which the hosts of the job meet, has left");
    }
  }
  if (host.seat) {
    lost_.push_back({change, host.hello.host});
  }
  if (phase_ == Phase::gathering && host.seat) {
    broken_ = {change, host.hello.host};  // why it may be hopeless
  }
  if (phase_ == Phase::running && host.seat &&
      !host.has_succeeded_in(generation_)) {
    break_world(change, host.hello.host);
  }
}

void Coordinator::remove_silent() {
  if (now_ < next_silence_) {
    return;
  }
  next_silence_ = now_ + options_.patience.silence();
  for (auto next = hosts_.begin(); next != hosts_.end();) {
    const auto host = next++;
    if (host->first != kOwn &&
        now_ - host->second.last_heard >= options_.patience.silence()) {
      actions_.push_back(Drop{host->first});
      remove(host, Change::vanished);
    } else if (host->first != kOwn) {
      next_silence_ = std::min(
          next_silence_, host->second.last_heard + options_.patience.silence());
    }
  }
}

void Coordinator::break_world(Change change,
                              const std::string& host,
                              Time::duration pause) {
  broken_ = {change, host};
  phase_ = Phase::gathering;
  gathering_ = {
      options_.terms, options_.patience, last_host_count_, now_ + pause};
  tell_all_ = true;
}

void Coordinator::form_or_give_up() {
  if (phase_ != Phase::gathering) {
    return;
  }
  const WorldBroken* lost = has_lost_ ? &broken_ : nullptr;
  std::visit(Overloaded{[](const Gathering::Wait&) {},
                        [this](const Gathering::Form&) { form(); },
                        [this](const Gathering::GiveUp& why) {
                          close(kExitFailure, why.text);
                        }},
             gathering_.judge(hosts_, tally_.joined, lost, now_));
}

void Coordinator::form() {
  const auto next = budget_.next_allowed(restarts_, now_);
  World world{.generation = generation_, .restarts = restarts_};
  world.restart_after =
      next ? std::chrono::ceil<std::chrono::milliseconds>(*next - now_)
           : kNever;
  generation_ = form_world(hosts_, options_.terms, world);
  has_lost_ = true;
  phase_ = Phase::running;
  tally_ = tally_of(hosts_, generation_);
  last_host_count_ = tally_.seated;
  failed_id_.clear();
  lost_.clear();
  has_success_ = false;
  tell_all_ = true;
}

void Coordinator::close(int exit_code, const std::string& text) {
  closed_ = {exit_code, text};
  phase_ = Phase::closing;
  closing_since_ = now_;
  tell_all_ = true;
}

void Coordinator::finish_closing() {
  if (phase_ == Phase::closing &&
      (is_own_alone() || now_ - closing_since_ >= kFarewell)) {
    phase_ = Phase::done;
    tell_all_ = true;
  }
}

bool Coordinator::is_own_alone() const {
  return hosts_.size() == hosts_.count(kOwn);
}

}  // namespace launcher
