#include "launcher/hosts/coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"
#include "launcher/base/text.h"
#include "launcher/hosts/coordinator/admission.h"
#include "launcher/hosts/coordinator/rank_assignment.h"

namespace launcher {

using Change = WorldBroken::Change;

namespace {

// Time for all hosts to learn that the job is closed.
constexpr std::chrono::seconds kClosingTime{5};

}  // namespace

Coordinator::Coordinator(Options options, Time now)
    : options_(std::move(options)),
      next_removal_(now + options_.timeouts.silence()),
      now_(now),
      closing_since_(now),
      gathering_(
          options_.terms, options_.timeouts, options_.terms.most_hosts, now) {}

Coordinator::Actions Coordinator::on_message(Connection from,
                                             const Message& message,
                                             Time now) {
  advance(now);
  std::visit(Overloaded{[&](const Hello& hello) { on_hello(from, hello); },
                        [&](const HostState& state) { on_state(from, state); },
                        [&](const Goodbye&) {
                          const auto found = hosts_.find(from);
                          if (found != hosts_.end()) {
                            remove(found, Change::left);
                          }
                          actions_.push_back(Drop{from});
                        },
                        [&](const auto&) { actions_.push_back(Drop{from}); }},
             message);
  return update_and_answer(from);
}

Coordinator::Actions Coordinator::on_closed(Connection connection,
                                            Time now,
                                            const std::string& how) {
  advance(now);
  const auto found = hosts_.find(connection);
  if (found != hosts_.end()) {
    on_connection_lost(found, how);
  }
  return update_and_answer(std::nullopt);
}

Coordinator::Actions Coordinator::on_time(Time now) {
  advance(now);
  return update_and_answer(std::nullopt);
}

Coordinator::Time Coordinator::next_deadline() const {
  Time deadline = now_ + options_.timeouts.keep_alive;
  const auto consider = [&](Time time) {
    deadline = time > now_ ? std::min(deadline, time) : deadline;
  };
  if (phase_ == Phase::closing) {
    consider(closing_since_ + kClosingTime);
  }
  if (phase_ == Phase::gathering) {
    consider(gathering_.next_deadline(now_));
  }
  consider(next_removal_);
  return deadline;
}

void Coordinator::advance(Time now) {
  now_ = std::max(now, now_);
}

Coordinator::Actions Coordinator::update_and_answer(
    std::optional<Connection> asker) {
  remove_silent_hosts();
  form_or_give_up();
  if (phase_ == Phase::running && has_success_ && have_all_succeeded()) {
    close(0, "");
  }
  finish_closing();
  const bool is_for_all = std::exchange(answer_all_, false);
  const auto found = asker ? hosts_.find(*asker) : hosts_.end();
  if (!is_for_all && found != hosts_.end()) {
    send_answer(found->first, found->second);
  }
  for (auto next = hosts_.begin(); is_for_all && next != hosts_.end(); ++next) {
    send_answer(next->first, next->second);
  }
  return std::exchange(actions_, {});
}

void Coordinator::on_hello(Connection from, const Hello& hello) {
  const bool is_over = phase_ == Phase::closing || phase_ == Phase::done;
  if (is_over && known_ids_.count(hello.id) == 0) {
    // A host of the next job at this endpoint. It tries again, and must not get
    // the exit code of this job.
    actions_.push_back(Drop{from});
    return;
  }
  const std::string refusal =
      refusal_of(hello,
                 {.terms = options_.terms,
                  .token = options_.token,
                  .keep_alive = options_.timeouts.keep_alive},
                 hosts_);
  if (!refusal.empty()) {
    actions_.push_back(Send{from, RendezvousLost{refusal}});
    actions_.push_back(Drop{from});
    return;
  }
  const auto holder = holder_of_rank(hello, options_.terms, hosts_);
  if (holder != hosts_.end()) {
    if (holder->second.is_connected) {
      actions_.push_back(
          Send{from, RendezvousLost{rank_taken_text(hello, holder->second)}});
    }
    actions_.push_back(Drop{from});  // without an answer, it tries again
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
    hosts_.emplace(from,
                   KnownHost{.hello = hello,
                             .lost_at = now_ + options_.timeouts.silence(),
                             .arrival = ++arrivals_});
    return;
  }
  if (known->second.is_connected) {
    // The old connection has not ended yet.
    actions_.push_back(Drop{known->first});
  }
  auto host = hosts_.extract(known);
  host.key() = from;
  host.mapped().lost_at = now_ + options_.timeouts.silence();
  host.mapped().is_connected = true;
  hosts_.insert(std::move(host));
}

void Coordinator::on_state(Connection from, const HostState& state) {
  const auto found = hosts_.find(from);
  if (found == hosts_.end()) {
    actions_.push_back(
        Drop{from});  // it connects again and begins with a Hello
    return;
  }
  KnownHost& host = found->second;
  host.lost_at = now_ + options_.timeouts.silence();
  if (state.number <= host.state.number) {
    return;
  }
  host.state = state;
  if (phase_ == Phase::running && host.world) {
    on_state_in_world(host);
  } else if (phase_ == Phase::running && state.joins &&
             last_host_count_ < options_.terms.most_hosts && !has_success_) {
    break_world({Change::joined, host.hello.host});
  }
}

void Coordinator::on_state_in_world(KnownHost& host) {
  if (!host.is_in(generation_)) {
    return;
  }
  const auto* failed = host.state.outcome
                           ? std::get_if<HostFailed>(&*host.state.outcome)
                           : nullptr;
  if (failed != nullptr) {
    on_failure(host, *failed);
  } else if (host.state.outcome) {
    has_success_ = true;
  }
}

void Coordinator::on_failure(const KnownHost& host, const HostFailed& failure) {
  const std::string& name = host.hello.host;
  if (failure.is_final || restarts_ >= options_.terms.max_restarts) {
    close(failure.status.shell_code(),
          "rank " + std::to_string(failure.rank) + " on host " + name +
              (failure.reason.empty() ? " failed: " + failure.status.text()
                                      : " could not start: " + failure.reason));
    closed_.first = FirstFailure{failure.rank, name};
    return;
  }
  ++restarts_;
  break_world({Change::failed, name});
}

void Coordinator::on_connection_lost(HostTable::iterator away,
                                     const std::string& how) {
  if (phase_ == Phase::closing || phase_ == Phase::done) {
    remove(away, Change::vanished);  // it knows that the job is closed
    return;
  }
  KnownHost& host = away->second;
  host.is_connected = false;
  host.how_lost = "its connection has ended" + (how.empty() ? "" : ": " + how);
  host.lost_at = std::min(host.lost_at, now_ + options_.timeouts.keep_alive);
  next_removal_ = std::min(next_removal_, host.lost_at);
}

void Coordinator::remove(HostTable::iterator gone,
                         Change change,
                         const std::string& how) {
  const KnownHost host = std::move(gone->second);
  const WorldBroken lost{change, host.hello.host, how};
  hosts_.erase(gone);
  if (is_own(host)) {
    if (phase_ == Phase::gathering || phase_ == Phase::running) {
      close(kExitFailure,
            "host " + host.hello.host +
                ", at which the hosts of the job meet, has left");
    }
  }
  if (phase_ == Phase::gathering && host.world) {
    broken_ = lost;  // Gathering may give up for this reason
  }
  if (phase_ == Phase::running && is_at_work(host)) {
    break_world(lost);
  }
}

void Coordinator::remove_silent_hosts() {
  if (now_ < next_removal_) {
    return;
  }
  const auto silence = options_.timeouts.silence();
  next_removal_ = now_ + silence;
  for (auto next = hosts_.begin(); next != hosts_.end();) {
    const auto host = next++;
    if (is_own(host->second)) {
      continue;
    }
    if (now_ < host->second.lost_at) {
      next_removal_ = std::min(next_removal_, host->second.lost_at);
      continue;
    }
    if (host->second.is_connected) {
      actions_.push_back(Drop{host->first});
    }
    remove(host,
           Change::vanished,
           host->second.is_connected ? "silent for " + patience_text(silence)
                                     : host->second.how_lost);
  }
}

void Coordinator::break_world(WorldBroken why) {
  broken_ = std::move(why);
  phase_ = Phase::gathering;
  gathering_ = {options_.terms, options_.timeouts, last_host_count_, now_};
  answer_all_ = true;
}

void Coordinator::form_or_give_up() {
  if (phase_ != Phase::gathering) {
    return;
  }
  const WorldBroken* lost = generation_ >= 0 ? &broken_ : nullptr;
  std::visit(Overloaded{[](const Gathering::Wait&) {},
                        [this](const Gathering::Form&) { form(); },
                        [this](const Gathering::GiveUp& why) {
                          close(kExitFailure, why.text + advice());
                        }},
             gathering_.judge(hosts_, lost, now_));
}

void Coordinator::form() {
  generation_ = form_world(hosts_,
                           options_.terms,
                           {.generation = generation_, .restarts = restarts_});
  phase_ = Phase::running;
  last_host_count_ = static_cast<int>(
      std::count_if(hosts_.begin(), hosts_.end(), [](const auto& entry) {
        return entry.second.world.has_value();
      }));
  has_success_ = false;
  answer_all_ = true;
}

void Coordinator::close(int exit_code, const std::string& text) {
  closed_ = JobClosed{exit_code, text};
  phase_ = Phase::closing;
  closing_since_ = now_;
  answer_all_ = true;
}

void Coordinator::finish_closing() {
  if (phase_ == Phase::closing &&
      (is_own_alone() || now_ - closing_since_ >= kClosingTime)) {
    phase_ = Phase::done;
    answer_all_ = true;
  }
}

bool Coordinator::is_at_work(const KnownHost& host) const {
  return host.world && !host.has_succeeded_in(generation_);
}

bool Coordinator::have_all_succeeded() const {
  return std::none_of(hosts_.begin(), hosts_.end(), [this](const auto& entry) {
    return is_at_work(entry.second);
  });
}

bool Coordinator::is_own_alone() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [this](const auto& entry) {
    return is_own(entry.second);
  });
}

void Coordinator::send_answer(Connection connection, const KnownHost& host) {
  if (!host.is_connected) {
    return;
  }
  const HostState& state = host.state;
  Message message = Noted{waiting_text(host)};
  if (phase_ == Phase::done || phase_ == Phase::closing) {
    if (phase_ == Phase::done || !is_own(host)) {
      message = closed_;
    }
  } else if (state.joins) {
    if (phase_ == Phase::running && host.world && !host.is_in(generation_)) {
      message = WorldFormed{*host.world};
    }
  } else if (state.generation >= 0 &&
             !(phase_ == Phase::running && host.world &&
               host.is_in(generation_))) {
    message = Broken{state.generation, broken_};
  }
  actions_.push_back(Send{connection, std::move(message)});
}

/// Reason why a host waits while others work; empty if it does not wait.
std::string Coordinator::waiting_text(const KnownHost& host) const {
  if (phase_ == Phase::gathering && host.state.joins) {
    return gathering_.describe(hosts_, now_) + advice();
  }
  if (phase_ != Phase::running) {
    return "";
  }
  if (host.world && host.has_succeeded_in(generation_)) {
    return "its workers have succeeded; those of " +
           names_of(
               hosts_,
               [this](const KnownHost& other) { return is_at_work(other); }) +
           " have not yet";
  }
  if (!host.state.joins || host.world) {
    return "";
  }
  return has_success_
             ? "the workers of another host have succeeded, so the job takes "
               "in no more hosts; it waits for its end"
             : "as many hosts are at work as --nnodes allows; it starts when "
               "one of them is lost";
}

/// Empty once a world has formed, because then all hosts have come.
std::string Coordinator::advice() const {
  const bool is_one_missing =
      generation_ < 0 &&
      static_cast<int>(hosts_.size()) < options_.terms.most_hosts;
  return is_one_missing ? options_.advice : "";
}

}  // namespace launcher
