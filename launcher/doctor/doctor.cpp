#include "launcher/doctor/doctor.h"

#include "launcher/binding/affinity.h"
#include "launcher/doctor/all_reduce_run.h"
#include "launcher/doctor/diagnose.h"
#include "launcher/doctor/doctor_report.h"
#include "launcher/doctor/nvml.h"
#include "launcher/doctor/probe_network.h"
#include "launcher/doctor/probe_system.h"

namespace launcher {
namespace {

/// --gpus stands for the variable, as it does in a job.
void show_gpus(const std::vector<std::string>& ids, Environment& environment) {
  std::string& visible = environment["CUDA_VISIBLE_DEVICES"];
  visible.clear();
  for (const std::string& id : ids) {
    visible += (visible.empty() ? "" : ",") + id;
  }
}

int worker_count_of(const LaunchOptions& options, const MachineFacts& machine) {
  using Kind = WorkerCount::Kind;
  if (options.worker_count && options.worker_count->kind == Kind::number) {
    return options.worker_count->number;
  }
  if (options.worker_count && options.worker_count->kind == Kind::cpu) {
    return machine.system.cpu_count;
  }
  return usual_worker_count(machine);
}

std::optional<int> host_rank_of(const LaunchOptions& options) {
  return options.meeting ? options.meeting->wanted_rank
                         : std::optional(options.host_rank);
}

}  // namespace

Diagnosis examine(const DoctorOptions& options,
                  const Environment& environment) {
  HostInfo host = probe_host();
  host.topology = read_topology(usable_cpus());
  MachineFacts machine;
  machine.environment = environment;
  if (options.job.gpus) {
    show_gpus(*options.job.gpus, machine.environment);
  }
  machine.gpu = probe_gpus(host.gpu_count);
  machine.network = probe_network(host.name, meeting_point(options.job));
  machine.system = probe_system(host, environment);
  const JobShape job{.workers = worker_count_of(options.job, machine),
                     .hosts = options.job.host_count,
                     .host_rank = host_rank_of(options.job)};
  machine.all_reduce = run_all_reduce(job.workers, machine.environment);
  const Findings findings = diagnose(machine, job);
  return {options.as_json ? doctor_json(machine, findings)
                          : doctor_text(machine, findings),
          exit_code_of(findings)};
}

}  // namespace launcher
