#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/base/overloaded.h"
#include "launcher/job/policy/policy.h"

// How workers, attempts and the job come to their end, whatever the phase.
namespace launcher {
namespace {

// A process that is killed can need a while: a GPU driver gives memory back.
constexpr std::chrono::milliseconds kLeastTimeToDie{5'000};
constexpr std::chrono::milliseconds kMostTimeToDie{30'000};
// The reader may take its time, but not for ever once ddprun was asked to end.
constexpr std::chrono::milliseconds kTimeToDrain{1'000};

}  // namespace

Actions Policy::stop(const Cause& cause, int number) {
  phase_ = Phase::stopping;
  cause_ = cause;
  return {StopWorkers{number}, ArmTimer{Timer::grace, options_.grace_period}};
}

Actions Policy::pass_on_while_ending(int number) {
  // Who is to end is not stopped on the way, and was continued already.
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
                   // What happened on another host may be why ours failed.
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

/// Another host's failure that was first is the cause, or what else has ended
/// the job there, unless workers hang here: of that nobody else can tell.
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

/// Whether a restart follows is decided here: the others hear of it, too.
Actions Policy::tell_failure(int rank, const Cause& cause) {
  starts_again_ = !is_final(cause, options_.final_codes) && may_restart();
  return {TellOutcome{HostFailed{rank, *failure_of(cause), !starts_again_}}};
}

bool Policy::may_restart() const {
  // The hosts' budget was counted when the world was formed, before we heard of
  // it: what is free for us is free for all.
  // In milliseconds, of which "never" is too many to be nanoseconds.
  const auto passed =
      std::chrono::floor<std::chrono::milliseconds>(now_ - started_);
  return world_.restart_after ? passed >= *world_.restart_after
                              : budget_.allows(world_.restarts, now_);
}

}  // namespace launcher
