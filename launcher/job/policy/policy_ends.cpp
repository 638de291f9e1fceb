#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/base/overloaded.h"
#include "launcher/job/policy/policy.h"

// Part of Policy: the end of workers, attempts and the job, in any phase.
namespace launcher {
namespace {

// A killed process may need some time to end: a GPU driver frees memory.
constexpr std::chrono::milliseconds kLeastTimeToDie{5'000};
constexpr std::chrono::milliseconds kMostTimeToDie{30'000};
// A slow reader of the output may delay the end, but only briefly after ddprun
// was asked to end.
constexpr std::chrono::milliseconds kTimeToDrain{1'000};

}  // namespace

Actions Policy::stop(const Cause& cause, int number) {
  phase_ = Phase::stopping;
  cause_ = cause;
  return {StopWorkers{number}, ArmTimer{Timer::grace, options_.grace_period}};
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
  return {
      KillAll{},
      ArmTimer{
          Timer::kill,
          std::clamp(options_.grace_period, kLeastTimeToDie, kMostTimeToDie)}};
}

Actions Policy::end_attempt() {
  if (is_member_ && std::holds_alternative<WorldBroken>(cause_)) {
    return join_again();
  }
  if (is_member_ && starts_again_ && failure_of(cause_)) {
    return pause_and_join();
  }
  if (std::holds_alternative<std::monostate>(cause_) && is_member_) {
    phase_ = Phase::waiting;
    return {TellOutcome{HostSucceeded{}}};
  }
  if (is_member_ && failure_of(cause_) && world_.host_count > 1) {
    phase_ = Phase::waiting;
    return {};
  }
  const auto* signal = std::get_if<SignalReceived>(&cause_);
  const bool is_clean = options_.stops_cleanly && signal != nullptr &&
                        phase_ == Phase::stopping && !has_failure_;
  return end_job(is_clean ? Cause(StoppedCleanly{signal->number}) : cause_);
}

Actions Policy::on_waiting_after_failure(const Event& event) {
  return std::visit(
      Overloaded{[this](const WorldBroken& broken) {
                   // The event on the other host may have caused the failure
                   // here.
                   if (broken.change != WorldBroken::Change::failed &&
                       broken.change != WorldBroken::Change::vanished) {
                     return end_job(cause_);
                   }
                   cause_ = broken;
                   return join_again();
                 },
                 [this](const SignalReceived& signal) {
                   return stop_signals_.take(signal.number) ? end_job(cause_)
                                                            : Actions{};
                 },
                 [this](const RendezvousLost&) { return end_job(cause_); },
                 [this](const JobClosed&) { return end_job(cause_); },
                 [](const auto&) { return Actions{}; }},
      event);
}

/// Replaces a worker failure as the cause by an earlier failure on another
/// host, or by the reason why the job was closed there. Keeps a hang on this
/// host: only this host can describe it.
void Policy::hear(const JobClosed& closed) {
  if (phase_ == Phase::draining || phase_ == Phase::done) {
    return;
  }
  first_ = closed.first;
  const bool is_elsewhere =
      first_ && (first_->rank < world_.first_rank ||
                 first_->rank >= world_.first_rank + options_.worker_count);
  const bool is_no_failure = !first_ && !closed.text.empty();
  if ((is_elsewhere || is_no_failure) &&
      std::holds_alternative<WorkerExited>(cause_)) {
    cause_ = closed;
  }
}

Actions Policy::join_again() {
  phase_ = Phase::joining;
  return {WriteReport{std::exchange(cause_, {})}, Join{}};
}

Actions Policy::pause_and_join() {
  const auto delay =
      world_.restart_after ? std::chrono::milliseconds(0) : budget_.spend(now_);
  if (delay.count() == 0) {
    return join_again();
  }
  phase_ = Phase::pausing;
  return {WriteReport{std::exchange(cause_, {})},
          ArmTimer{Timer::restart, delay}};
}

Actions Policy::end_job(const Cause& cause) {
  phase_ = Phase::draining;
  Actions actions = leave() + Actions{WriteReport{cause, first_}};
  if (stop_signals_.have_come() || std::holds_alternative<TimeIsUp>(cause) ||
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
Actions Policy::tell_failure(int rank, const Cause& cause) {
  starts_again_ = !is_final(cause, options_.final_codes) && may_restart();
  return {TellOutcome{HostFailed{rank, *failure_of(cause), !starts_again_}}};
}

bool Policy::may_restart() const {
  // With several hosts, restart_after counts from the time at which the
  // coordinator formed the world. started_ is later, so a restart that is
  // allowed here is allowed for all hosts. Compares milliseconds, because the
  // value for "never" does not fit into nanoseconds.
  const auto passed =
      std::chrono::floor<std::chrono::milliseconds>(now_ - started_);
  return world_.restart_after ? passed >= *world_.restart_after
                              : budget_.allows(world_.restarts, now_);
}

}  // namespace launcher
