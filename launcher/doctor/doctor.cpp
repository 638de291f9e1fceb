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

namespace launcher {
namespace {

/// Sets CUDA_VISIBLE_DEVICES to the GPUs of --gpus, as for a job.
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
  if (options.job.gpus) {
    show_gpus(*options.job.gpus, machine.environment);
  }
  machine.gpu = probe_gpus(host.gpu_count);
  machine.network = probe_network(host.name, rendezvous_endpoint(options.job));
  machine.system = probe_system(host, environment);
  const JobShape job{.workers = worker_count_of(options.job, machine),
                     .hosts = host_count(options.job.rendezvous),
                     .host_rank = host_rank(options.job.rendezvous)};
  // First, because the other hosts wait for this one.
  machine.hosts = look_at_hosts(options.job, machine, tell);
  machine.all_reduce = run_all_reduce(job.workers, machine.environment);
  const Findings findings = diagnose(machine, job);
  return {options.as_json ? doctor_json(machine, findings)
                          : doctor_text(machine, findings),
          exit_code_of(findings)};
}

}  // namespace launcher
