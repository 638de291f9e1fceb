#include "launcher/job/status/job_status.h"

#include <utility>

#include "launcher/base/shortened.h"

namespace launcher {
namespace {

constexpr size_t kMostOfReport = 200;
constexpr size_t kMostOfName = 1000;

}  // namespace

JobStatus job_status(JobMoment moment) {
  const LaunchOptions& options = moment.job.options;
  const World& world = moment.world;
  JobStatus status;
  status.job = shortened(moment.job.run_id, kMostOfName);
  status.host = shortened(moment.job.host_name, kMostOfName);
  status.program = shortened(moment.job.program.path, kMostOfName);
  status.pid = moment.pid;
  status.supervisor = moment.supervisor;
  status.phase = phase_name(moment.phase);
  status.uptime = moment.uptime;
  status.attempts = moment.attempts;
  status.generation = world.generation;
  status.restarts = world.restarts;
  status.max_restarts = options.max_restarts;
  status.host_rank = world.host_rank;
  status.host_count =
      moment.attempts > 0 ? world.host_count : host_count(options.rendezvous);
  status.first_rank = world.first_rank;
  status.world_size = moment.attempts > 0 ? world.world_size : 0;
  if (moment.attempts > 0) {
    status.store = shortened(world.master.host, kMostOfName) + ":" +
                   std::to_string(world.master.port);
  }
  status.logs = moment.logs;
  status.worker_count = moment.job.worker_count;
  status.workers = std::move(moment.workers);
  if (status.workers.size() > kMostWorkerStates) {
    status.workers.resize(kMostWorkerStates);
  }
  for (WorkerState& worker : status.workers) {
    if (worker.progress) {
      worker.progress->last = shortened(worker.progress->last, kMostOfReport);
    }
  }
  return status;
}

std::string phase_name(Policy::Phase phase) {
  using Phase = Policy::Phase;
  switch (phase) {
    case Phase::joining:
      return "joining";
    case Phase::running:
      return "running";
    case Phase::stopping:
      return "stopping";
    case Phase::killing:
      return "killing";
    case Phase::waiting:
      return "waiting";
    case Phase::draining:
      return "draining";
    case Phase::preempted:
      return "preempted";
    case Phase::done:
      break;
  }
  return "done";
}

std::string state_name(const WorkerState& worker) {
  return worker.end             ? "ended"
         : worker.is_stopped    ? "stopped"
         : worker.asked_by != 0 ? "ending"
                                : "running";
}

}  // namespace launcher
