#include "launcher/hosts/coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"

namespace launcher {
namespace {

using Change = WorldBroken::Change;

// For the hosts to hear that the job is closed.
constexpr std::chrono::seconds kFarewell{5};
// For the hosts of a world that has failed to tell of their own failures: many
// times what a message takes, and what all have to wait for one that is stuck.
constexpr std::chrono::milliseconds kJudging{500};

}  // namespace

Coordinator::Coordinator(Options options, Time now)
    : options_(std::move(options)),
      next_missed_(now + options_.patience.silence()),
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

Coordinator::Actions Coordinator::on_closed(Connection connection,
                                            Time now,
                                            const std::string& how) {
  advance(now);
  const auto found = hosts_.find(connection);
  if (found != hosts_.end()) {
    begin_absence(found, how);
  }
  return settle(std::nullopt);
}

Coordinator::Actions Coordinator::on_time(Time now) {
  advance(now);
  return settle(std::nullopt);
}

Coordinator::Actions Coordinator::suspend(const std::string& why, Time now) {
  advance(now);
  if (phase_ == Phase::running) {
    break_world({Change::vanished, why});
  }
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
  if (phase_ == Phase::judging) {
    consider(judging_since_ + kJudging);
  }
  if (phase_ == Phase::gathering) {
    consider(gathering_.next_deadline(now_));
  }
  consider(next_missed_);
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
    judging_since_ += passed;
    for (auto& [connection, host] : hosts_) {
      host.last_heard += passed;
      if (host.away_since) {
        *host.away_since += passed;
      }
    }
  }
  now_ = now;
}

Coordinator::Actions Coordinator::settle(std::optional<Connection> asker) {
  remove_missed();
  if (phase_ == Phase::judging &&
      (tally_.unheard == 0 ||
       (now_ - judging_since_ >= kJudging && !waits_for_silent_host()))) {
    judge_failure();
  }
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

void Coordinator::break_world(WorldBroken why, Time::duration pause) {
  broken_ = std::move(why);
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
                          close(kExitFailure, why.text + loopback_hint());
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
  tally_ = counts_of(hosts_, generation_);
  last_host_count_ = tally_.seated;
  failed_id_.clear();
  first_failure_.reset();
  lost_.clear();
  has_success_ = false;
  tell_all_ = true;
}

void Coordinator::close(int exit_code, const std::string& text) {
  closed_ = JobClosed{exit_code, text};
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
