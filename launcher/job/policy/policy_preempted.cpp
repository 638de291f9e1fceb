#include <csignal>
#include <utility>

#include "launcher/base/overloaded.h"
#include "launcher/job/policy/policy.h"

// Part of Policy: --on-preempt. After its signal the job ends, but the workers
// exit by themselves.
namespace launcher {

bool Policy::is_preemption(const SignalReceived& signal) const {
  return options_.on_preempt && options_.on_preempt->signal == signal.number;
}

Actions Policy::preempt(const SignalReceived& signal) {
  phase_ = Phase::preempted;
  const auto time = options_.on_preempt->time;
  return {RequestStop{signal.number, time}, ArmTimer{Timer::preempt, time}};
}

Actions Policy::on_preempted(const Event& event) {
  const auto end_by_signal = [this] {
    return leave() + stop(SignalReceived{options_.on_preempt->signal}, SIGTERM);
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
          [this](const StartFailed& failed) {
            alive_ = 0;
            return kill(failed);
          },
          [&](const TimerFired& fired) {
            return fired.timer == Timer::preempt ? end_by_signal() : Actions{};
          },
          // No time is left for another attempt.
          [&](const WorldBroken&) { return end_by_signal(); },
          [this](const RendezvousLost& lost) { return stop(lost, SIGTERM); },
          [this](const JobClosed& closed) { return stop(closed, SIGTERM); },
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
    cause_ = exit.status.signal == preemption.number ? Cause(preemption)
                                                     : Cause(exit);
  }
  if (alive_ > 0) {
    return {};
  }
  return (has_failure_ ? leave() : Actions{}) + stop(cause_, SIGTERM);
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

}  // namespace launcher
