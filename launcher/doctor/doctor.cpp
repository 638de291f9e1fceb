#include "launcher/doctor/doctor.h"

#include "launcher/doctor/all_reduce_run.h"
#include "launcher/doctor/diagnose.h"
#include "launcher/doctor/doctor_report.h"
#include "launcher/doctor/host_test.h"
#include "launcher/doctor/nvml.h"
#include "launcher/doctor/paths/path_messages.h"
#include "launcher/doctor/probe_network.h"
#include "launcher/doctor/probe_system.h"
#include "launcher/machine/affinity.h"
#include "launcher/net/address.h"
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

/// Returns the address that the user chose for this host's ranks; empty: none.
std::string user_address(const CoordinatedConfig& config,
                         const MachineFacts& machine) {
  const auto own = addresses_of(config.local_address, 0);
  if (!config.local_address.empty() && !own.empty()) {
    return numeric_host(own.front());
  }
  const std::string* name =
      find_variable(machine.environment, "GLOO_SOCKET_IFNAME");
  return name == nullptr ? "" : address_of_interface(machine.network, *name);
}

std::optional<HostsFacts> look_at_hosts(
    const LaunchOptions& options,
    const MachineFacts& machine,
    const std::function<void(const std::string&)>& tell) {
  const RendezvousConfig& config = options.rendezvous;
  const int count = host_count(config);
  if (count == 1) {
    return std::nullopt;
  }
  HostsFacts facts;
  const CoordinatedConfig* common = coordinated(config);
  if (common == nullptr) {
    facts.left_out = "by --rdzv-conf=meeting_port=0 hosts do not meet";
  } else if (count > kMostProbedHosts) {
    facts.left_out = std::to_string(count) + " hosts are too many; at most " +
                     std::to_string(kMostProbedHosts) + " are";
  }
  if (!facts.left_out.empty()) {
    return facts;
  }
  const CoordinatorEndpoint* coordinator = coordinator_endpoint(config);
  if (coordinator != nullptr &&
      addresses_of(coordinator->endpoint.host, coordinator->endpoint.port)
          .empty()) {
    return std::nullopt;  // which is a finding of its own
  }
  return test_hosts(options,
                    {.name = machine.network.host.name,
                     .address = user_address(*common, machine),
                     .rank = common->wanted_rank},
                    machine.environment,
                    tell);
}

}  // namespace

Diagnosis examine(const DoctorOptions& options,
                  const Environment& environment,
                  const std::function<void(const std::string&)>& tell) {
  HostInfo host = probe_host();
  host.topology = read_topology(usable_cpus());
  MachineFacts machine;
  machine.environment = environment;
  machine.gpu = probe_gpus(host.gpu_count);
  if (!machine.gpu.gpus.empty()) {
    host.gpu_count = static_cast<int>(machine.gpu.gpus.size());
  }
  machine.network = probe_network(host.name, rendezvous_endpoint(options.job));
  machine.system = probe_system(host, environment);
  const JobShape job = shape_of_job(options.job, host, environment, machine);
  // First, because the other hosts wait for this one.
  machine.hosts = look_at_hosts(options.job, machine, tell);
  machine.all_reduce = run_all_reduce(job.workers, machine.environment);
  const Findings findings = diagnose(machine, job);
  return {options.as_json ? doctor_json(machine, findings)
                          : doctor_text(machine, findings),
          exit_code_of(findings)};
}

}  // namespace launcher
