#include "launcher/doctor/doctor.h"

#include "launcher/doctor/all_reduce.h"
#include "launcher/doctor/diagnose.h"
#include "launcher/doctor/doctor_report.h"
#include "launcher/doctor/probes.h"
#include "launcher/machine/topology.h"
#include "launcher/plan/devices.h"

namespace launcher {
namespace {

/// Shows the workers the GPUs of --gpus and counts the workers, both as for a
/// job. `refusal` is the error with which a job would end.
JobShape shape_of_job(const LaunchOptions& options,
                      const HostInfo& host,
                      const Environment& environment,
                      MachineFacts& machine) {
  JobShape job{.hosts = host_count(options.rendezvous),
               .host_rank = host_rank(options.rendezvous)};
  try {
    if (const auto gpus = chosen_gpus(options, host, environment)) {
      machine.environment["CUDA_VISIBLE_DEVICES"] = *gpus;
    }
    if (options.worker_count || options.gpus) {
      job.workers = choose_worker_count(options, host, environment);
      return job;
    }
  } catch (const LaunchError& error) {
    job.refusal = error.what();
  }
  job.workers = usual_worker_count(machine);
  return job;
}

}  // namespace

Diagnosis examine(const DoctorOptions& options,
                  const Environment& environment) {
  HostInfo host = probe_host();
  host.topology = read_topology(usable_cpus());
  MachineFacts machine;
  machine.environment = environment;
  machine.gpu = probe_gpus(host.gpu_count, environment);
  if (!machine.gpu.gpus.empty()) {
    host.gpu_count = static_cast<int>(machine.gpu.gpus.size());
  }
  machine.network = probe_network(host.name, rendezvous_endpoint(options.job));
  machine.system = probe_system(host);
  const JobShape job = shape_of_job(options.job, host, environment, machine);
  machine.all_reduce = run_all_reduce(job.workers, machine.environment);
  const Findings findings = diagnose(machine, job);
  return {doctor_text(machine, findings), exit_code_of(findings)};
}

}  // namespace launcher
