#include "launcher/supervisor.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>

#include "launcher/process/descendants.h"
#include "launcher/process/error_file.h"

namespace launcher {
namespace {

constexpr std::chrono::milliseconds kTimeToFlush{1'000};
constexpr const char* kTimer = "supervisor";

Policy::Options policy_options(const Job& job) {
  return {.worker_count = job.worker_count,
          .max_restarts = job.options.max_restarts,
          .grace_period = job.options.grace_period,
          .stop_signals = job.options.signals};
}

std::string seconds(std::chrono::milliseconds time) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.begin(),
                                 text.end(),
                                 static_cast<double>(time.count()) / 1000,
                                 std::chars_format::fixed)
                       .ptr;
  return std::string(text.begin(), end) + " s";
}

}  // namespace

Supervisor::Supervisor(const Job& job, const Surroundings& around)
    : job_(job), around_(around), policy_(policy_options(job)) {
  signal_token_ = around_.loop.watch(
      around_.signals.fd(), EPOLLIN, [this] { on_signals(); });
}

Supervisor::~Supervisor() {
  around_.loop.unwatch(signal_token_);
  around_.loop.disarm_timer(kTimer);
}

int Supervisor::run() {
  for (;;) {
    start_attempt();
    while (end_ == End::none) {
      round();
    }
    around_.loop.disarm_timer(kTimer);
    const bool is_last = end_ == End::finish;
    const Report report = make_report(finish_attempt());
    around_.consoles.err().write(report.text);
    if (is_last) {
      flush();
      return report.exit_code;
    }
    around_.log.warn("starting all workers again: restart ",
                     policy_.restarts(),
                     " of ",
                     job_.options.max_restarts);
  }
}

void Supervisor::start_attempt() {
  const int number = policy_.restarts();
  attempt_ = {.number = number,
              .master = around_.rendezvous.next(),
              .directory = around_.directory.attempt(number)};
  const LaunchPlan plan = make_plan(job_, attempt_);
  end_ = End::none;
  exits_.clear();
  started_ = std::chrono::steady_clock::now();
  output_.emplace(around_.loop);
  workers_.emplace(
      plan,
      Workers::Surroundings{
          job_.environment, around_.consoles, *output_, around_.cgroup.fd()});
  for (Worker& worker : workers_->all()) {
    const auto token = std::make_shared<EventLoop::Token>();
    *token = around_.loop.watch(
        worker.process.pidfd(), EPOLLIN, [this, &worker, token] {
          around_.loop.unwatch(*token);
          on_worker_exit(worker);
        });
  }
  around_.log.info("started ",
                   job_.worker_count,
                   " workers of ",
                   plan.path,
                   "; rank 0's store is at ",
                   attempt_.master.host,
                   ":",
                   attempt_.master.port);
}

void Supervisor::round() {
  around_.loop.run_once();
  output_->resume();
  around_.consoles.flush();
}

AttemptResult Supervisor::finish_attempt() {
  output_->finish();
  AttemptResult result;
  result.host = job_.host_name;
  result.attempt = attempt_.number;
  result.max_restarts = job_.options.max_restarts;
  if (policy_.cause() == Policy::Cause::signal) {
    result.stop_signal = policy_.stop_signal();
  }
  for (Worker& worker : workers_->all()) {
    const pid_t pid = worker.process.pid();
    const auto exit =
        std::find_if(exits_.begin(), exits_.end(), [pid](const auto& entry) {
          return entry.pid == pid;
        });
    if (exit == exits_.end()) {
      result.survivors.push_back({worker.spec.rank, pid});
      continue;
    }
    exit->last_lines = worker.errors->last_lines();
    exit->message = read_error_file(worker.spec.directory + "/error.json");
  }
  result.exits = std::move(exits_);
  workers_.reset();
  output_.reset();
  return result;
}

/// A reader may take its time, but not for ever once ddprun was asked to end.
void Supervisor::flush() {
  bool give_up = false;
  around_.loop.unwatch(signal_token_);
  signal_token_ = around_.loop.watch(around_.signals.fd(), EPOLLIN, [&] {
    around_.signals.read([&](int number) {
      const auto& stop = job_.options.signals;
      give_up |= std::find(stop.begin(), stop.end(), number) != stop.end();
    });
  });
  if (policy_.stop_signal() != 0) {
    around_.loop.arm_timer(kTimer, kTimeToFlush, [&] { give_up = true; });
  }
  around_.consoles.flush();
  while (!around_.consoles.are_drained() && !give_up) {
    around_.loop.run_once();
  }
  around_.loop.disarm_timer(kTimer);
}

void Supervisor::on_signals() {
  bool child_ended = false;
  around_.signals.read([&](int number) {
    if (number == SIGCHLD) {
      child_ended = true;
      return;
    }
    around_.log.warn(signal_name(number),
                     " came: passing it on to the workers");
    on_event(SignalReceived{number});
  });
  if (child_ended) {
    reap_orphans([this](pid_t pid) { return workers_->has_unreaped(pid); });
    check_gone();
  }
}

void Supervisor::on_worker_exit(Worker& worker) {
  const auto status = worker.process.peek();
  if (!status) {
    return;
  }
  WorkerExit exit;
  exit.rank = worker.spec.rank;
  exit.local_rank = worker.spec.local_rank;
  exit.pid = worker.process.pid();
  exit.status = *status;
  exit.asked_by = worker.asked_by;
  exit.after = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - started_);
  exits_.push_back(exit);
  on_event(WorkerExited{worker.spec.local_rank, *status});
  worker.process.reap();
  check_gone();
}

void Supervisor::on_event(const Event& event) {
  const Action action = policy_.on(event);
  std::visit([this](const auto& known) { perform(known); }, action);
}

void Supervisor::arm_timer(std::chrono::milliseconds delay) {
  around_.loop.arm_timer(kTimer, delay, [this] { on_event(TimeIsUp{}); });
}

void Supervisor::check_gone() {
  if (end_ != End::none || !workers_->are_all_reaped()) {
    return;
  }
  if (!has_children()) {
    on_event(AllAreGone{});
    return;
  }
  // In its grace period a worker's group may still have something to save.
  workers_->sweep(policy_.phase() == Policy::Phase::stopping
                      ? Workers::Sweep::strays
                      : Workers::Sweep::everything);
}

void Supervisor::perform(const EndGroup& action) {
  for (const Worker& worker : workers_->all()) {
    if (worker.spec.local_rank == action.local_rank) {
      worker.process.signal_group(SIGKILL);
    }
  }
}

void Supervisor::perform(const SignalAll& action) {
  workers_->signal_all(action.number,
                       policy_.phase() == Policy::Phase::stopping);
}

void Supervisor::perform(const StopAll& action) {
  if (policy_.cause() == Policy::Cause::failure && policy_.alive() > 0) {
    around_.log.warn("rank ",
                     exits_.back().rank,
                     " failed (",
                     exits_.back().status.text(),
                     "); stopping the other ",
                     policy_.alive(),
                     " with ",
                     signal_name(action.number),
                     ", and with SIGKILL after ",
                     seconds(action.time));
  }
  workers_->signal_all(action.number, /*asks_to_end=*/true);
  arm_timer(action.time);
}

void Supervisor::perform(const KillAll& action) {
  if (policy_.alive() > 0) {
    around_.log.warn("ending ", policy_.alive(), " workers with SIGKILL");
  }
  workers_->signal_all(SIGKILL, /*asks_to_end=*/true);
  around_.cgroup.kill();
  arm_timer(action.time);
  check_gone();
}

}  // namespace launcher
