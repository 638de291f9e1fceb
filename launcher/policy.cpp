#include "launcher/policy.h"

#include <algorithm>
#include <csignal>

namespace launcher {
namespace {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

// A process that is killed can need a while: a GPU driver gives memory back.
constexpr std::chrono::milliseconds kLeastTimeToDie{5'000};

bool from_keyboard(int number) {
  return number == SIGINT || number == SIGQUIT;
}

}  // namespace

Policy::Policy(Options options)
    : options_(std::move(options)), alive_(options_.worker_count) {}

Action Policy::on(const Event& event) {
  return std::visit(
      Overloaded{
          [this](const WorkerExited& exit) { return on_exit(exit); },
          [this](const SignalReceived& signal) {
            return on_signal(signal.number);
          },
          [this](const TimeIsUp&) { return on_time(); },
          [this](const AllAreGone&) { return on_gone(); },
      },
      event);
}

Action Policy::on_exit(const WorkerExited& event) {
  --alive_;
  if (phase_ != Phase::running) {
    return Wait{};
  }
  if (!event.status.is_success()) {
    cause_ = Cause::failure;
    phase_ = Phase::stopping;
    return StopAll{SIGTERM, options_.grace_period};
  }
  return alive_ == 0 ? kill_all() : EndGroup{event.local_rank};
}

Action Policy::on_signal(int number) {
  if (!is_stop_signal(number)) {
    return SignalAll{number};
  }
  stop_signal_ = stop_signal_ == 0 ? number : stop_signal_;
  keyboard_signals_ += from_keyboard(number) ? 1 : 0;
  switch (phase_) {
    case Phase::running:
      cause_ = Cause::signal;
      phase_ = Phase::stopping;
      return StopAll{number, options_.grace_period};
    case Phase::stopping:
      if (keyboard_signals_ > 1) {
        return kill_all();
      }
      return SignalAll{number};
    case Phase::killing:
      break;
  }
  return Wait{};
}

Action Policy::on_time() {
  switch (phase_) {
    case Phase::stopping:
      return kill_all();
    case Phase::killing:
      return Finish{};  // what even SIGKILL does not end is reported
    case Phase::running:
      break;
  }
  return Wait{};
}

Action Policy::on_gone() {
  const bool again = cause_ == Cause::failure && stop_signal_ == 0 &&
                     restarts_ < options_.max_restarts;
  if (!again) {
    return Finish{};
  }
  ++restarts_;
  cause_ = Cause::none;
  phase_ = Phase::running;
  alive_ = options_.worker_count;
  return Restart{};
}

bool Policy::is_stop_signal(int number) const {
  const auto& known = options_.stop_signals;
  return std::find(known.begin(), known.end(), number) != known.end();
}

Action Policy::kill_all() {
  phase_ = Phase::killing;
  return KillAll{std::max(options_.grace_period, kLeastTimeToDie)};
}

}  // namespace launcher
