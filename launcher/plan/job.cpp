#include "launcher/plan/job.h"

#include <sys/stat.h>

#include <utility>

#include "ddp/base/cluster/env_integer.h"
#include "launcher/base/error.h"
#include "launcher/base/text.h"
#include "launcher/net/address.h"
#include "launcher/plan/binding_plan.h"
#include "launcher/plan/devices.h"

namespace launcher {
namespace {

void warn_of_idle_filters(Job& job) {
  const LaunchOptions& options = job.options;
  const bool has_filters =
      !options.out_filters.empty() || !options.err_filters.empty();
  if (has_filters && options.tee.empty()) {
    job.warnings.push_back(
        "--duplicate-stdout-filters and --duplicate-stderr-filters have no "
        "effect without --tee: they choose among the lines that it shows");
  }
}

void warn_of_file_timer(Job& job) {
  const std::string* enabled =
      find_variable(job.environment, "TORCHELASTIC_ENABLE_FILE_TIMER");
  if (enabled != nullptr && *enabled == "1") {
    job.warnings.push_back(
        "TORCHELASTIC_ENABLE_FILE_TIMER=1 has no effect: ddprun has no file "
        "timer; --hang-timeout=SECONDS ends workers that make no progress");
  }
}

/// Names the reason instead of a failed write: /dev/stdout, too, is a link.
void require_replaceable(const std::string& report_json) {
  struct stat status {};
  if (report_json.empty() || ::lstat(report_json.c_str(), &status) != 0 ||
      S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) {
    return;  // a folder is an error of the first report
  }
  throw UsageError(
      "--report-json: expected a regular file, or no file yet, because it is "
      "replaced as a whole, but " +
      report_json + " is " +
      (S_ISLNK(status.st_mode) ? "a symbolic link" : "a pipe or a device") +
      "; give another path");
}

void require_countable(const LaunchOptions& options, int worker_count) {
  using ddp::detail::kMostRanks;
  if (int64_t{worker_count} * host_count(options.rendezvous) > kMostRanks) {
    throw UsageError("--nproc-per-node: expected at most " +
                     std::to_string(kMostRanks) + " ranks in all, but got " +
                     std::to_string(worker_count) + " on each of " +
                     count_text(host_count(options.rendezvous), "host"));
  }
}

/// Disables restarts for static hosts without a coordinator. They do not learn
/// of each other's failures: the ranks of one host would restart and join the
/// others in the middle of their run.
void refuse_restarts_of_uncoordinated_hosts(Job& job) {
  const RendezvousConfig& config = job.options.rendezvous;
  if (host_count(config) > 1 &&
      std::holds_alternative<UncoordinatedConfig>(config) &&
      job.options.max_restarts > 0) {
    job.options.max_restarts = 0;
    job.warnings.push_back(
        "--max-restarts has no effect with hosts that do not meet "
        "(--rdzv-conf meeting_port=0): they cannot agree on a restart, so the "
        "first failure ends the job");
  }
}

/// Warns if workers share CPUs although the machine has more, which a scheduler
/// often withholds by mistake.
void warn_of_few_cpus(Job& job, const HostInfo& host) {
  if (job.worker_count > host.cpu_count && host.cpu_count < host.machine_cpus) {
    job.warnings.push_back(count_text(job.worker_count, "worker") +
                           " may use " + std::to_string(host.cpu_count) +
                           " of this machine's " +
                           count_text(host.machine_cpus, "CPU") +
                           ", by affinity or a quota; give the job more (srun "
                           "--cpus-per-task=N), or start fewer workers");
  }
}

/// Workers would wait for rank 0's store for a minute.
void warn_of_missing_loopback(Job& job, const HostInfo& host) {
  if (!host.has_loopback && host_count(job.options.rendezvous) == 1) {
    job.warnings.emplace_back(
        "expected to reach 127.0.0.1, where the ranks of this host meet, but "
        "got no route to it; bring the loopback up with this address (ip link "
        "set lo up)");
  }
}

/// Fills the parts of the rendezvous that other options and the environment
/// give.
void complete_rendezvous(Job& job) {
  auto* config = std::get_if<CoordinatedConfig>(&job.options.rendezvous);
  if (config == nullptr) {
    return;
  }
  config->terms.run_id = job.run_id;
  config->terms.max_restarts = job.options.max_restarts;
  config->role = job.options.role;
  const std::string* token = find_variable(job.environment, "DDPRUN_TOKEN");
  config->token = token != nullptr ? *token : "";
  // Of static hosts the one that listens warns for all.
  if (config->token.empty() && (!config->store || config->wanted_rank == 0)) {
    job.warnings.push_back(
        "anyone who reaches " + text_of(config->coordinator.endpoint) +
        " can take part in this job; set DDPRUN_TOKEN to the same secret on "
        "all hosts");
  }
}

/// DDPRUN_JOB_DIR is of an outer job, if this ddprun is its worker. The secret
/// is for ddprun only: a worker's environment may be copied to experiment
/// records and crash dumps.
void withhold_variables(Job& job) {
  for (const char* name : {ddp::env::kJobDir, "DDPRUN_TOKEN"}) {
    if (job.environment.erase(name) > 0) {
      job.withheld.emplace_back(name);
    }
  }
}

}  // namespace

Job make_job(LaunchOptions options,
             const HostInfo& host,
             const Environment& environment,
             const std::string& unique_run_id) {
  Job job;
  // Check the variable: CUDA silently ignores GPUs that do not exist.
  visible_gpus(host, environment);
  job.worker_count = choose_worker_count(options, host, environment);
  require_countable(options, job.worker_count);
  require_replaceable(options.report_json);
  job.gpus = chosen_gpus(options, host, environment);
  job.gpu_count = count_gpus_for_workers(options, host, environment);
  const bool has_mig_devices =
      needs_a_gpu_each(options, host, environment, job.worker_count);
  if (options.virtual_local_rank || has_mig_devices) {
    job.gpu_of_worker =
        gpus_by_worker(options, host, environment, job.worker_count);
  }
  if (options.numa_binding) {
    job.cpus = plan_binding(
        *options.numa_binding,
        host.topology,
        gpu_nodes_of_workers(options, host, environment, job.worker_count));
  }
  job.program = find_program(options, environment);
  job.environment = environment;
  job.host_name = host.name;
  job.cpu_count = host.cpu_count;
  // Several hosts must have the same run id, so it cannot be random.
  job.run_id = !options.run_id.empty()               ? options.run_id
               : host_count(options.rendezvous) == 1 ? unique_run_id
                                                     : "none";
  job.warnings = options.warnings;
  job.options = std::move(options);
  // Workers have their own sessions, so no SIGTTIN would stop them from reading
  // the input that is meant for the shell.
  job.has_stdin = !host.is_in_background;
  refuse_restarts_of_uncoordinated_hosts(job);
  complete_rendezvous(job);
  withhold_variables(job);
  warn_of_few_cpus(job, host);
  warn_of_missing_loopback(job, host);
  warn_of_idle_filters(job);
  if (has_mig_devices && !job.options.virtual_local_rank) {
    job.warnings.emplace_back(
        "CUDA shows a process one MIG device alone: each worker gets its own, "
        "as with --virtual-local-rank, and LOCAL_RANK is 0 for all");
  }
  warn_of_file_timer(job);
  return job;
}

}  // namespace launcher
