#include "launcher/job/policy/policy.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/base/overloaded.h"
#include "launcher/base/text.h"

namespace launcher {
namespace {

// A killed process may need some time to end: a GPU driver frees memory.
constexpr std::chrono::milliseconds kLeastTimeToDie{5'000};
constexpr std::chrono::milliseconds kMostTimeToDie{30'000};
// A slow reader of the output may delay the end, but only briefly after ddprun
// was asked to end.
constexpr std::chrono::milliseconds kTimeToDrain{1'000};
// Processes that notice the end of a worker, as Python's resource tracker, end
// in this time.
constexpr std::chrono::milliseconds kTimeToFollow{500};

constexpr auto kIgnore = [](const auto&) { return Actions{}; };

/// Concatenates two lists of actions.
Actions operator+(Actions first, const Actions& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

Policy::Policy(int worker_count, LaunchOptions options)
    : worker_count_(worker_count),
      options_(std::move(options)),
      stop_signals_(options_.signals) {}

Actions Policy::on(const Event& event) {
  if (std::holds_alternative<RendezvousLost>(event) ||
      std::holds_alternative<JobClosed>(event)) {
    is_member_ = false;
  }
  if (const auto* closed = std::get_if<JobClosed>(&event)) {
    first_ = closed->first;
  }
  if (const auto* note = std::get_if<RendezvousNote>(&event)) {
    return {Warn{note->text}};
  }
  const Actions actions = decide(event);
  const auto* signal = std::get_if<SignalReceived>(&event);
  return signal != nullptr ? warn_of_signal(*signal) + actions : actions;
}

Actions Policy::decide(const Event& event) {
  switch (phase_) {
    case Phase::joining:
      return on_joining(event);
    case Phase::running:
      return on_running(event);
    case Phase::preempted:
      return on_preempted(event);
    case Phase::stopping:
      return on_stopping(event);
    case Phase::killing:
      return on_killing(event);
    case Phase::waiting:
      return on_waiting(event);
    case Phase::draining:
      return on_draining(event);
    case Phase::done:
      break;
  }
  return {};
}

Actions Policy::on_joining(const Event& event) {
  return std::visit(
      Overloaded{[this](const WorldFormed& formed) {
                   return start_workers(formed.world);
                 },
                 [](const FolderMade&) { return Actions{Join{}}; },
                 [this](const StartFailed& failed) { return end_job(failed); },
                 [&](const auto&) { return on_without_workers(event); }},
      event);
}

Actions Policy::start_workers(const World& world) {
  Actions actions;
  if (world.restarts > world_.restarts) {
    actions.push_back(Warn{"starting all workers again: restart " +
                           std::to_string(world.restarts) + " of " +
                           std::to_string(options_.max_restarts)});
  }
  phase_ = Phase::running;
  world_ = world;
  alive_ = worker_count_;
  has_failure_ = false;
  starts_again_ = false;
  left_steps_ = 0;
  first_.reset();
  return std::move(actions) + Actions{StartWorkers{world_}};
}

Actions Policy::on_waiting(const Event& event) {
  return std::visit(
      Overloaded{[this](const WorldBroken& broken) {
                   note_broken_world(broken);
                   return join_again();
                 },
                 [&](const auto&) { return on_without_workers(event); }},
      event);
}

/// After a failure here, the failure stays the cause of the end.
Actions Policy::on_without_workers(const Event& event) {
  const auto end_by = [this](const Cause& cause) {
    return end_job(failure_of(cause_) ? cause_ : cause);
  };
  return std::visit(
      Overloaded{[&](const SignalReceived& signal) {
                   const bool ends =
                       stop_signals_.count_without_workers(signal.number) ||
                       (is_preemption(signal) && phase_ != Phase::waiting);
                   return ends ? end_by(signal) : Actions{};
                 },
                 [&](const RendezvousLost& lost) { return end_by(lost); },
                 [&](const JobClosed& closed) { return end_by(closed); },
                 kIgnore},
      event);
}

Actions Policy::on_running(const Event& event) {
  return std::visit(
      Overloaded{
          [this](const WorkerExited& exit) {
            return on_exit_while_running(exit);
          },
          [this](const WorkersHang& hangs) { return on_hang(hangs); },
          [this](const SignalReceived& signal) {
            return is_preemption(signal) ? preempt(signal)
                                         : on_signal_while_running(signal);
          },
          [this](const StartFailed& failed) { return on_failed_start(failed); },
          [this](const WorldBroken& broken) { return stop(broken, SIGTERM); },
          [this](const RendezvousLost& lost) { return stop(lost, SIGTERM); },
          [this](const JobClosed& closed) { return stop(closed, SIGTERM); },
          kIgnore},
      event);
}

/// Tells the other hosts, which would wait for this one.
Actions Policy::on_failed_start(const StartFailed& failed) {
  alive_ = 0;
  return Actions{SendOutcome{HostFailed{world_.first_rank,
                                        {.code = failed.exit_code},
                                        /*is_final=*/true,
                                        failed.text}}} +
         kill(failed);
}

Actions Policy::on_exit_while_running(const WorkerExited& exit) {
  --alive_;
  has_failure_ |= !exit.status.is_success();
  if (!exit.status.is_success()) {
    const int rank = world_.first_rank + exit.local_rank;
    const std::string others =
        alive_ == 1 ? "the other one" : "the other " + std::to_string(alive_);
    return (alive_ > 0 ? Actions{Warn{"rank " + std::to_string(rank) +
                                      " failed (" + exit.status.text() +
                                      "); stopping " + others + stop_text()}}
                       : Actions{}) +
           send_failure(rank, exit) + stop(exit, SIGTERM);
  }
  // Processes left by finished workers may run until the last worker has ended.
  // Then they get the grace period: a half to end by themselves.
  return alive_ == 0 ? let_end() : Actions{};
}

Actions Policy::on_hang(const WorkersHang& hangs) {
  const Hang& hang = hangs.hang;
  const auto hung = static_cast<int>(hang.workers.size());
  return Actions{Warn{headline(hang) + "; ending " +
                      (hung == 1 ? "it" : "them") + " with SIGKILL" +
                      (hung < alive_ ? ", and all others with SIGTERM" : "")}} +
         send_failure(hang.workers.front().rank, hangs) + end_hung(hangs);
}

Actions Policy::end_hung(const WorkersHang& hangs) {
  has_failure_ = true;
  std::vector<int> local_ranks;
  for (const HungWorker& worker : hangs.hang.workers) {
    local_ranks.push_back(worker.local_rank);
  }
  // Hung workers get no grace period; the others do.
  return stop(hangs, SIGTERM) +
         Actions{KillWorkers{std::move(local_ranks), SIGKILL}};
}

Actions Policy::on_signal_while_running(const SignalReceived& signal) {
  if (!stop_signals_.count(signal.number)) {
    // A session leader ignores SIGTSTP, because its process group is orphaned.
    return {PassOn{signal.number == SIGTSTP ? SIGSTOP : signal.number}};
  }
  return leave() + (stop_signals_.allow_no_grace()
                        ? kill(signal)
                        : stop(signal, signal.number));
}

Actions Policy::on_stopping(const Event& event) {
  return std::visit(
      Overloaded{[this](const SignalReceived& signal) {
                   return on_signal_while_stopping(signal);
                 },
                 [this](const TimerFired& fired) {
                   return fired.timer == Timer::grace ? end_grace() : Actions{};
                 },
                 [this](const ChildrenRemain&) {
                   return left_steps_ > 0 ? Actions{}
                                          : Actions{TerminateStrays{}};
                 },
                 // The stop signal came just before this news.
                 [this](const StartFailed&) {
                   alive_ = 0;
                   return Actions{KillAll{}};
                 },
                 [this](const AllAreGone&) {
                   return Actions{DisarmTimer{Timer::grace}} + end_attempt();
                 },
                 [&](const auto&) { return on_while_ending(event); }},
      event);
}

Actions Policy::end_grace() {
  const auto grace = options_.grace_period;
  if (left_steps_ > 0) {
    const ArmTimer half{Timer::grace, grace / 2};
    return --left_steps_ > 0
               ? Actions{NameLeft{grace}, half}
               : Actions{StopWorkers{SIGTERM}, TerminateStrays{}, half};
  }
  return (alive_ == 0
              ? Actions{Warn{"ending with SIGKILL what the workers left "
                             "running: after " +
                             patience_text(grace) + " it is still there"}}
              : Actions{}) +
         kill(cause_);
}

Actions Policy::on_signal_while_stopping(const SignalReceived& signal) {
  if (!stop_signals_.count(signal.number)) {
    return forbid_restart(signal) + pass_on_while_ending(signal.number);
  }
  if (std::holds_alternative<WorldBroken>(cause_)) {
    cause_ = signal;
  }
  Actions actions = leave();
  if (stop_signals_.allow_no_grace()) {
    return actions + Actions{DisarmTimer{Timer::grace}} + kill(cause_);
  }
  actions.push_back(StopWorkers{signal.number});
  return std::exchange(left_steps_, 0) == 0
             ? actions
             : actions + Actions{TerminateStrays{},
                                 ArmTimer{Timer::grace, options_.grace_period}};
}

Actions Policy::on_killing(const Event& event) {
  return std::visit(
      Overloaded{[this](const SignalReceived& signal) {
                   return stop_signals_.count(signal.number)
                              ? leave()
                              : forbid_restart(signal) +
                                    pass_on_while_ending(signal.number);
                 },
                 // Processes that survive SIGKILL are reported, and no restart
                 // follows.
                 [this](const TimerFired& fired) {
                   return fired.timer == Timer::kill ? end_job(cause_)
                                                     : Actions{};
                 },
                 [](const ChildrenRemain&) { return Actions{KillStrays{}}; },
                 [this](const AllAreGone&) {
                   return Actions{DisarmTimer{Timer::kill}} + end_attempt();
                 },
                 [&](const auto&) { return on_while_ending(event); }},
      event);
}

Actions Policy::on_while_ending(const Event& event) {
  // Later news may replace these causes: a broken world does not end the job,
  // and success depends on all hosts.
  const bool may_be_decided = std::holds_alternative<std::monostate>(cause_) ||
                              std::holds_alternative<WorldBroken>(cause_);
  const auto decide = [&](const Cause& end) {
    cause_ = may_be_decided ? end : cause_;
    return Actions{};
  };
  return std::visit(
      Overloaded{[this](const WorkerExited& exit) {
                   --alive_;
                   has_failure_ |= !exit.status.is_success();
                   return Actions{};
                 },
                 [this](const WorldBroken& broken) {
                   if (is_member_ &&
                       (failure_of(cause_) ||
                        std::holds_alternative<std::monostate>(cause_))) {
                     note_broken_world(broken);
                   }
                   return Actions{};
                 },
                 [&](const RendezvousLost& lost) { return decide(lost); },
                 [&](const JobClosed& closed) { return decide(closed); },
                 kIgnore},
      event);
}

Actions Policy::on_draining(const Event& event) {
  const auto* fired = std::get_if<TimerFired>(&event);
  const auto* signal = std::get_if<SignalReceived>(&event);
  if (std::holds_alternative<OutputDrained>(event) ||
      (fired != nullptr && fired->timer == Timer::drain) ||
      (signal != nullptr &&
       stop_signals_.count_without_workers(signal->number))) {
    phase_ = Phase::done;
  }
  return {};
}

// --on-preempt: after its signal the job ends, but the workers exit by
// themselves.

bool Policy::is_preemption(const SignalReceived& signal) const {
  return options_.on_preempt && options_.on_preempt->signal == signal.number;
}

Actions Policy::preempt(const SignalReceived& signal) {
  phase_ = Phase::preempted;
  was_preempted_ = true;
  const auto time = options_.on_preempt->time;
  return {RequestStop{signal.number, time}, ArmTimer{Timer::preempt, time}};
}

Actions Policy::on_preempted(const Event& event) {
  const auto end_by_signal = [this] {
    return (alive_ > 0
                ? Actions{Warn{"the time of --on-preempt is up: stopping " +
                               count_text(alive_, "worker") + stop_text()}}
                : Actions{}) +
           leave() + stop(SignalReceived{options_.on_preempt->signal}, SIGTERM);
  };
  return std::visit(
      Overloaded{
          [this](const WorkerExited& exit) {
            return on_exit_while_preempted(exit);
          },
          [this](const WorkersHang& hangs) {
            return leave() + end_hung(hangs);
          },
          [this](const SignalReceived& signal) {
            return is_preemption(signal) ? Actions{}
                                         : on_signal_while_running(signal);
          },
          [this](const StartFailed& failed) { return on_failed_start(failed); },
          [&](const TimerFired& fired) {
            return fired.timer == Timer::preempt ? end_by_signal() : Actions{};
          },
          // No worker had started.
          [this](const AllAreGone&) {
            return end_job(SignalReceived{options_.on_preempt->signal});
          },
          // Events on other hosts take no time from these workers. No other
          // attempt follows.
          [this](const WorldBroken&) { return leave(); },
          [this](const JobClosed& closed) {
            if (closed.exit_code != 0 &&
                std::holds_alternative<std::monostate>(cause_)) {
              cause_ = closed;
            }
            return Actions{};
          },
          [](const auto&) { return Actions{}; }},
      event);
}

/// Lets the other workers run: they may be about to end in the same way, with
/// an exit code of the program's choice.
Actions Policy::on_exit_while_preempted(const WorkerExited& exit) {
  --alive_;
  if (!exit.status.is_success() && !std::exchange(has_failure_, true)) {
    // Workers without a stop file received the signal itself.
    const SignalReceived preemption{options_.on_preempt->signal};
    if (std::holds_alternative<std::monostate>(cause_)) {
      cause_ = exit.status.signal == preemption.number ? Cause(preemption)
                                                       : Cause(exit);
    }
  }
  if (alive_ > 0) {
    return {};
  }
  return has_failure_ ? leave() + stop(cause_, SIGTERM) : let_end();
}

/// Forbids a restart after an attempt that is ending; a success remains a
/// success.
Actions Policy::forbid_restart(const SignalReceived& signal) {
  if (!is_preemption(signal) ||
      std::holds_alternative<std::monostate>(cause_)) {
    return {};
  }
  if (std::holds_alternative<WorldBroken>(cause_)) {
    cause_ = signal;
  }
  return leave();
}

// The end of workers, attempts and the job, in any phase.

Actions Policy::stop(const Cause& cause, int number) {
  phase_ = Phase::stopping;
  cause_ = cause;
  return {StopWorkers{number}, ArmTimer{Timer::grace, options_.grace_period}};
}

Actions Policy::let_end() {
  phase_ = Phase::stopping;
  left_steps_ = 2;
  return {ArmTimer{Timer::grace,
                   std::min(kTimeToFollow, options_.grace_period / 2)}};
}

Actions Policy::pass_on_while_ending(int number) {
  // Workers that were asked to end are not stopped; stopped ones were
  // continued.
  const bool is_job_control = number == SIGTSTP || number == SIGCONT;
  return is_job_control ? Actions{} : Actions{PassOn{number}};
}

Actions Policy::kill(const Cause& cause) {
  phase_ = Phase::killing;
  cause_ = cause;
  return (alive_ > 0 ? Actions{Warn{"ending " + count_text(alive_, "worker") +
                                    " with SIGKILL"}}
                     : Actions{}) +
         Actions{KillAll{},
                 ArmTimer{Timer::kill,
                          std::clamp(options_.grace_period,
                                     kLeastTimeToDie,
                                     kMostTimeToDie)}};
}

/// RequestStop has its own message, and a terminal's new size needs none.
Actions Policy::warn_of_signal(const SignalReceived& signal) const {
  const bool is_request = phase_ == Phase::preempted && is_preemption(signal);
  return is_request || signal.number == SIGWINCH
             ? Actions{}
             : Actions{
                   Warn{signal_name(signal.number) + " came" +
                        (alive_ > 0 ? ": passing it on to the workers" : "")}};
}

std::string Policy::stop_text() const {
  return " with SIGTERM, and with SIGKILL after " +
         patience_text(options_.grace_period);
}

Actions Policy::end_attempt() {
  if (is_member_ && std::holds_alternative<WorldBroken>(cause_)) {
    return join_again();
  }
  if (is_member_ && starts_again_ && failure_of(cause_)) {
    return join_again();
  }
  if (std::holds_alternative<std::monostate>(cause_) && is_member_) {
    phase_ = Phase::waiting;
    return {SendOutcome{HostSucceeded{}}};
  }
  if (is_member_ && failure_of(cause_) && world_.host_count > 1) {
    phase_ = Phase::waiting;
    return {};
  }
  return end_job(cause_);
}

/// The world broke before the failure or success here, which then does not
/// count. If a failure has broken the world, the failure here is still
/// reported.
void Policy::note_broken_world(const WorldBroken& broken) {
  starts_again_ = true;
  if (broken.change != WorldBroken::Change::failed || !failure_of(cause_)) {
    cause_ = broken;
  }
}

Actions Policy::join_again() {
  phase_ = Phase::joining;
  return {WriteReport{std::exchange(cause_, {})}, Join{}};
}

Actions Policy::end_job(const Cause& cause) {
  phase_ = Phase::draining;
  Actions actions = leave() + Actions{WriteReport{cause, first_}};
  if (stop_signals_.have_come() ||
      std::holds_alternative<SignalReceived>(cause)) {
    actions.push_back(ArmTimer{Timer::drain, kTimeToDrain});
  }
  actions.push_back(DrainOutput{});
  return actions;
}

Actions Policy::leave() {
  return std::exchange(is_member_, false) ? Actions{Leave{}} : Actions{};
}

/// Decides whether a restart follows and tells the other hosts.
Actions Policy::send_failure(int rank, const Cause& cause) {
  starts_again_ = !is_final(cause, options_.final_codes) &&
                  world_.restarts < options_.max_restarts;
  return {SendOutcome{HostFailed{rank, *failure_of(cause), !starts_again_}}};
}

std::string text_of(Policy::Phase phase) {
  switch (phase) {
    case Policy::Phase::joining:
      return "joining";
    case Policy::Phase::running:
      return "running";
    case Policy::Phase::stopping:
      return "stopping";
    case Policy::Phase::killing:
      return "killing";
    case Policy::Phase::waiting:
      return "waiting";
    case Policy::Phase::draining:
      return "draining";
    case Policy::Phase::preempted:
      return "preempted";
    case Policy::Phase::done:
      break;
  }
  return "done";
}

}  // namespace launcher
