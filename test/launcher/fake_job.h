#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "launcher/base/timers.h"
#include "launcher/job/supervisor.h"

namespace launcher::test {

using namespace std::chrono_literals;

/// A host with its processes, clock and rendezvous in memory, with which a
/// Supervisor runs a job without waiting.
///
/// If no event is left, the next step of the test's script runs. After the last
/// step the clock jumps to the next timer. A job without events and timers is
/// an error, and so are too many events.
class FakeJob : public EventSource,
                public Rendezvous,
                public WorkerRunner,
                public Status {
 public:
  /// Behaviour of an attempt's processes.
  struct Habits {
    bool dies_of_stop_signals = true;
    bool dies_of_kill = true;
    int strays = 0;           ///< daemons started by the workers
    bool strays_obey = true;  ///< end when asked
    bool strays_die = true;   ///< end by SIGKILL
    bool can_start = true;
    std::set<int> who_asks{};  ///< local ranks with a stop file
  };

  Habits habits;
  bool answers_joins = true;  ///< like a rendezvous of one host
  bool answers_success = true;
  bool has_reader = true;  ///< for ddprun's output
  Job job;

  FakeJob(int workers, int max_restarts) {
    job.worker_count = workers;
    job.options.max_restarts = max_restarts;
    job.options.grace_period = 7s;
    job.options.signals = {15, 2};
    job.program = {"/bin/train", {"train"}};
    job.host_name = "node7";
  }

  /// Runs the job. Each step of `script` runs when no other event is left.
  int run(std::vector<std::function<void()>> script) {
    script_ = {script.begin(), script.end()};
    post(FolderMade{"/run"});
    Supervisor supervisor(job,
                          "/progress",
                          {.events = *this,
                           .rendezvous = *this,
                           .workers = *this,
                           .status = *this});
    supervisor_ = &supervisor;
    const int code = supervisor.run();
    supervisor_ = nullptr;
    return code;
  }

  Policy::Phase phase() const { return supervisor_->phase(); }

  // Results of the job.
  std::vector<LaunchPlan> plans;
  std::vector<std::string> calls;  ///< calls of the interfaces, in order
  std::string text;                ///< all written text
  std::chrono::milliseconds elapsed{0};
  int events_handled = 0;

  // Events that a test causes.
  void post(const Event& event) { events_.push_back(event); }
  void exit(int local_rank, ExitStatus status) {
    if (alive_.erase(local_rank) > 0) {
      exits_.push_back(exit_of(local_rank, status));
      post(WorkerExited{local_rank, status});
    }
  }
  void end_strays() {
    strays_ = 0;
    post_what_is_left();
  }
  int alive() const { return static_cast<int>(alive_.size()); }
  int strays() const { return strays_; }

  // Implements EventSource.
  Event next() override {
    constexpr int kMostEvents = 10'000;
    if (++events_handled > kMostEvents) {
      throw std::runtime_error("the job goes in circles");
    }
    while (events_.empty()) {
      wait();
    }
    const Event event = events_.front();
    events_.pop_front();
    return event;
  }
  std::chrono::steady_clock::time_point now() const override {
    return std::chrono::steady_clock::time_point(elapsed);
  }
  void arm(Timer timer, std::chrono::milliseconds delay) override {
    timers_.arm(text_of(timer), time() + delay, [this, timer] {
      post(TimerFired{timer});
    });
  }
  void disarm(Timer timer) override { timers_.disarm(text_of(timer)); }

  // Implements Rendezvous.
  void join(const HostOffer& offer) override {
    calls.push_back("join");
    if (answers_joins) {
      World world;
      world.generation = generation_++;
      world.restarts = restarts_;
      world.world_size = offer.worker_count;
      world.master = {"127.0.0.1", 29500};
      post(WorldFormed{world});
    }
  }
  void report(const HostOutcome& outcome) override {
    const bool success = std::holds_alternative<HostSucceeded>(outcome);
    calls.push_back(success ? "succeeded" : "failed");
    restarts_ += success ? 0 : 1;
    if (success && answers_success) {
      post(JobClosed{0});
    }
  }
  void leave() override { calls.push_back("leave"); }
  bool is_over() const override { return true; }

  // Implements WorkerRunner.
  void start(LaunchPlan plan) override {
    calls.push_back("start");
    plans.push_back(plan);
    is_active_ = true;
    if (!habits.can_start) {
      post(StartFailed{127, "program x does not exist"});
      return;
    }
    for (const WorkerSpec& worker : plan.workers) {
      alive_.insert(worker.local_rank);
      unreleased_.insert(worker.local_rank);
    }
    strays_ = habits.strays;
  }
  void signal_all(int number, Purpose purpose) override {
    calls.push_back((purpose == Purpose::end ? "end " : "pass ") +
                    std::to_string(number));
    if (purpose == Purpose::end && habits.dies_of_stop_signals) {
      end_all(number);
    }
  }
  int request_stop(int number, std::chrono::milliseconds) override {
    calls.push_back("request " + std::to_string(number));
    int told = 0;
    for (const int local_rank : alive_) {
      told += static_cast<int>(habits.who_asks.count(local_rank));
    }
    return told;
  }
  void kill(int local_rank, int number) override {
    calls.push_back("kill rank " + std::to_string(local_rank));
    exit(local_rank, {.signal = number});
  }
  void kill_all() override {
    calls.push_back("kill");
    if (habits.dies_of_kill) {
      end_all(9);
    }
    post_what_is_left();
  }
  void release(int local_rank) override {
    if (unreleased_.erase(local_rank) != 1) {
      throw std::runtime_error("released twice");
    }
    post_what_is_left();
  }
  std::string names_of_left() const override {
    return strays_ > 0 ? "upload (pid 2000)" : "";
  }
  void terminate_strays() override {
    calls.push_back("ask strays");
    lose_stray(habits.strays_obey);
  }
  void kill_strays() override {
    calls.push_back("kill strays");
    lose_stray(habits.strays_die);
  }
  std::vector<WorkerState> states() const override {
    std::vector<WorkerState> states;
    for (const int local_rank : alive_) {
      WorkerState state;
      state.rank = state.local_rank = local_rank;
      state.pid = 1000 + local_rank;
      states.push_back(state);
    }
    return states;
  }
  WorkersResult finish() override {
    WorkersResult result;
    result.exits = std::move(exits_);
    exits_.clear();
    for (const int local_rank : alive_) {
      result.survivors.push_back({local_rank, 1000 + local_rank});
    }
    survivors += static_cast<int>(alive_.size());
    alive_.clear();
    unreleased_.clear();
    is_active_ = false;
    return result;
  }
  int survivors = 0;

  // Implements Status.
  void info(const std::string&) override {}
  void warn(const std::string& line) override { text += line + "\n"; }
  void write_report(const Report& report) override { text += report.text; }
  void write_state(const JobState&) override {}
  void drain() override {
    calls.push_back("drain");
    if (has_reader) {
      post(OutputDrained{});
    }
  }

 private:
  void lose_stray(bool ends) {
    if (strays_ > 0 && ends) {
      --strays_;  // one at a time
      post_what_is_left();
    }
  }
  static WorkerExit exit_of(int local_rank, ExitStatus status) {
    WorkerExit exit;
    exit.rank = exit.local_rank = local_rank;
    exit.pid = 1000 + local_rank;
    exit.status = status;
    exit.asked_by = status.signal;
    return exit;
  }

  Timers::Time time() const { return Timers::Time(elapsed); }

  void wait() {
    if (!script_.empty()) {
      const auto step = script_.front();
      script_.pop_front();
      step();
      return;
    }
    const auto deadline = timers_.next_deadline();
    if (!deadline) {
      throw std::runtime_error("the job waits for nothing");
    }
    elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline->time_since_epoch());
    timers_.run_due(*deadline);
  }

  void end_all(int number) {
    for (const int local_rank : std::set<int>(alive_)) {
      exit(local_rank, {.signal = number});
    }
  }

  void post_what_is_left() {
    if (is_active_ && unreleased_.empty()) {
      post(strays_ > 0 ? Event(ChildrenRemain{}) : Event(AllAreGone{}));
    }
  }

  Supervisor* supervisor_ = nullptr;
  std::deque<std::function<void()>> script_;
  std::deque<Event> events_;
  Timers timers_;
  int generation_ = 0;
  int restarts_ = 0;
  bool is_active_ = false;
  int strays_ = 0;
  std::set<int> alive_;
  std::set<int> unreleased_;
  std::vector<WorkerExit> exits_;
};

}  // namespace launcher::test
