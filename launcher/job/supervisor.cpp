#include "launcher/job/supervisor.h"

#include <unistd.h>

#include <csignal>
#include <ctime>
#include <utility>

#include "launcher/base/exit_status.h"
#include "launcher/base/text.h"
#include "launcher/workers/output/run_directory.h"

namespace launcher {

Supervisor::Supervisor(const Job& job,
                       std::string job_directory,
                       const Seams& seams)
    : job_(job),
      job_directory_(std::move(job_directory)),
      seams_(seams),
      policy_(job.worker_count, job.options) {}

int Supervisor::run() {
  while (policy_.phase() != Policy::Phase::done) {
    handle(seams_.events.next());
  }
  return exit_code_;
}

JobState Supervisor::state() const {
  return {.phase = policy_.phase(),
          .attempts = attempts_,
          .world = world_,
          .logs = logs_,
          .workers = seams_.workers.states()};
}

void Supervisor::handle(const Event& event) {
  if (const auto* folder = std::get_if<FolderMade>(&event)) {
    folder_ = folder->path;
  }
  perform(policy_.on(event));
  if (const auto* exit = std::get_if<WorkerExited>(&event)) {
    seams_.workers.release(exit->local_rank);
  }
  if (!job_.options.report_json.empty()) {
    seams_.status.write_state(state());
  }
}

void Supervisor::perform(const Actions& actions) {
  for (const Action& action : actions) {
    std::visit([this](const auto& known) { perform(known); }, action);
  }
}

void Supervisor::perform(const Warn& action) {
  seams_.status.warn(action.text);
}

void Supervisor::perform(const Join&) {
  seams_.rendezvous.join({.worker_count = job_.worker_count});
}

void Supervisor::perform(const Leave&) {
  seams_.rendezvous.leave();
}

void Supervisor::perform(const SendOutcome& action) {
  seams_.rendezvous.report(action.outcome);
}

void Supervisor::perform(const StartWorkers& action) {
  world_ = action.world;
  ++attempts_;
  seams_.status.info("starting " + count_text(job_.worker_count, "worker") +
                     " of " + job_.program.path + "; rank 0's store is at " +
                     world_.master.host + ":" +
                     std::to_string(world_.master.port));
  const std::string directory = attempt_directory(folder_, world_);
  logs_ = keeps_files(job_) ? directory : "";
  seams_.workers.start(
      make_plan(job_, {world_, directory, job_directory_, keeps_files(job_)}));
}

void Supervisor::perform(const PassOn& action) {
  seams_.workers.signal_all(action.number, WorkerRunner::Purpose::pass_on);
}

void Supervisor::perform(const RequestStop& action) {
  const int alive = policy_.alive();
  const int sent = seams_.workers.request_stop(action.number, action.time);
  seams_.status.warn(
      signal_name(action.number) + " came: " +
      (sent == 0 ? "passing it on to the workers"
       : sent == alive
           ? "telling the workers to save and to end"
           : "telling " + std::to_string(sent) + " of " +
                 std::to_string(alive) +
                 " workers to save and to end, and passing it on to the " +
                 (alive - sent == 1 ? "other, which does not ask"
                                    : "others, which do not ask")) +
      "; they have " + patience_text(action.time));
}

void Supervisor::perform(const StopWorkers& action) {
  seams_.workers.signal_all(action.number, WorkerRunner::Purpose::end);
}

void Supervisor::perform(const KillWorkers& action) {
  for (const int local_rank : action.local_ranks) {
    seams_.workers.kill(local_rank, action.number);
  }
}

void Supervisor::perform(const NameLeft& action) {
  const std::string left = seams_.workers.names_of_left();
  if (!left.empty()) {
    seams_.status.warn("the workers have ended and left running: " + left +
                       "; SIGTERM follows after " +
                       patience_text(action.grace / 2) + ", SIGKILL after " +
                       patience_text(action.grace) + " (--grace-period)");
  }
}

void Supervisor::perform(const KillAll&) {
  seams_.workers.kill_all();
}

void Supervisor::perform(const TerminateStrays&) {
  seams_.workers.terminate_strays();
}

void Supervisor::perform(const KillStrays&) {
  seams_.workers.kill_strays();
}

void Supervisor::perform(const ArmTimer& action) {
  seams_.events.arm(action.timer, action.delay);
}

void Supervisor::perform(const DisarmTimer& action) {
  seams_.events.disarm(action.timer);
}

void Supervisor::perform(const WriteReport& action) {
  const AttemptResult result{
      .host = job_.host_name,
      .logs = logs_,
      .workers = seams_.workers.finish(),
      .cause = action.cause,
      .first = action.first,
      .restarts = world_.restarts,
      .max_restarts = job_.options.max_restarts,
      .is_final = is_final(action.cause, job_.options.final_codes),
      .success_code =
          policy_.was_preempted() ? job_.options.preempt_code.value_or(0) : 0,
      .worker_count = job_.worker_count,
      .gpu_count = job_.gpu_count,
      .time = std::time(nullptr)};
  const Report report = make_report(result);
  seams_.status.write_report(report);
  exit_code_ = report.exit_code;
}

void Supervisor::perform(const DrainOutput&) {
  seams_.status.drain();
}

}  // namespace launcher
