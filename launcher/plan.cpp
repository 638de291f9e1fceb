#include "launcher/plan.h"

#include "ddp/worker_env.h"
#include "launcher/devices.h"
#include "launcher/process/signal_names.h"

namespace launcher {
namespace {

std::string replaced(std::string text,
                     const std::string& from,
                     const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string signal_list(const std::vector<int>& signals) {
  std::string text;
  for (const int number : signals) {
    text += (text.empty() ? "" : ",") + signal_name(number);
  }
  return text;
}

Environment ranks_of(const Job& job, const WorkerSpec& worker) {
  namespace env = ddp::env;
  const auto world = std::to_string(job.worker_count * job.options.host_count);
  return {{env::kRank, std::to_string(worker.rank)},
          {env::kLocalRank, std::to_string(worker.local_rank)},
          {env::kWorldSize, world},
          {env::kLocalWorldSize, std::to_string(job.worker_count)},
          {env::kGroupRank, std::to_string(job.options.host_rank)},
          {env::kGroupWorldSize, std::to_string(job.options.host_count)},
          {env::kRoleName, job.options.role},
          {env::kRoleRank, std::to_string(worker.rank)},
          {env::kRoleWorldSize, world}};
}

void set_if_absent(Environment& changes,
                   const Job& job,
                   const std::string& name,
                   const std::string& value) {
  if (find_variable(job.environment, name) == nullptr) {
    changes[name] = value;
  }
}

Environment environment_of(const Job& job,
                           const Attempt& attempt,
                           const WorkerSpec& worker) {
  namespace env = ddp::env;
  Environment changes = ranks_of(job, worker);
  changes[env::kMasterAddr] = attempt.master.host;
  changes[env::kMasterPort] = std::to_string(attempt.master.port);
  changes[env::kRestartCount] = std::to_string(attempt.number);
  changes[env::kMaxRestarts] = std::to_string(job.options.max_restarts);
  changes[env::kRunId] = job.run_id;
  changes[env::kUseAgentStore] = "False";
  changes[env::kErrorFile] = worker.directory + "/error.json";
  changes["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signal_list(job.options.signals);
  set_if_absent(changes, job, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (job.worker_count > 1) {
    set_if_absent(changes, job, "OMP_NUM_THREADS", "1");
  }
  if (job.gpus) {
    changes["CUDA_VISIBLE_DEVICES"] = *job.gpus;
  }
  for (const RankVariable& variable : job.options.rank_variables) {
    changes[variable.name] = replaced(
        replaced(variable.pattern, "{rank}", std::to_string(worker.rank)),
        "{local_rank}",
        std::to_string(worker.local_rank));
  }
  return changes;
}

std::string prefix_of(const Job& job, const WorkerSpec& worker) {
  const std::string* chosen =
      find_variable(job.environment, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  std::string text = chosen != nullptr ? *chosen : "[${rank}] ";
  text = replaced(text, "${rank}", std::to_string(worker.rank));
  text = replaced(text, "${local_rank}", std::to_string(worker.local_rank));
  return replaced(text, "${role_name}", job.options.role);
}

bool is_shown(const LaunchOptions& options, int local_rank) {
  if (!options.shown_ranks) {
    return true;
  }
  for (const int shown : *options.shown_ranks) {
    if (shown == local_rank) {
      return true;
    }
  }
  return false;
}

void choose_targets(const LaunchOptions& options, WorkerSpec& worker) {
  const StreamSet redirect = options.redirects.at(worker.local_rank);
  const StreamSet tee = options.tee.at(worker.local_rank);
  const bool shown = is_shown(options, worker.local_rank);
  worker.to_file = {.out = redirect.out || tee.out,
                    .err = redirect.err || tee.err};
  worker.to_console = {.out = shown && (tee.out || !redirect.out),
                       .err = shown && (tee.err || !redirect.err)};
}

std::string quoted(const std::string& text) {
  const bool plain =
      !text.empty() && text.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyz"
                           "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789_@%+=:,./-") == std::string::npos;
  return plain ? text : "'" + replaced(text, "'", "'\\''") + "'";
}

}  // namespace

Job make_job(LaunchOptions options,
             const HostInfo& host,
             const Environment& environment,
             const std::string& unique_run_id) {
  Job job;
  // CUDA would silently show fewer GPUs than CUDA_VISIBLE_DEVICES names.
  visible_gpus(host, environment);
  job.worker_count = choose_worker_count(options, host, environment);
  job.gpus = chosen_gpus(options, host, environment);
  job.program = find_program(options, environment);
  job.environment = environment;
  job.host_name = host.name;
  // Several hosts must agree on it, so it cannot be made up on each.
  job.run_id = !options.run_id.empty()   ? options.run_id
               : options.host_count == 1 ? unique_run_id
                                         : "none";
  job.options = std::move(options);
  return job;
}

LaunchPlan make_plan(const Job& job, const Attempt& attempt) {
  LaunchPlan plan;
  plan.path = job.program.path;
  for (int local_rank = 0; local_rank < job.worker_count; ++local_rank) {
    WorkerSpec worker;
    worker.local_rank = local_rank;
    worker.rank = job.options.host_rank * job.worker_count + local_rank;
    worker.directory = attempt.directory + "/" + std::to_string(local_rank);
    worker.environment = environment_of(job, attempt, worker);
    worker.prefix = prefix_of(job, worker);
    choose_targets(job.options, worker);
    for (const auto& argument : job.program.argv) {
      worker.argv.push_back(
          replaced(argument, "${local_rank}", std::to_string(local_rank)));
    }
    plan.workers.push_back(std::move(worker));
  }
  return plan;
}

std::string describe(const LaunchPlan& plan) {
  std::string text;
  for (const WorkerSpec& worker : plan.workers) {
    text += "# rank " + std::to_string(worker.rank) + ", local rank " +
            std::to_string(worker.local_rank) + "\nenv \\\n";
    for (const auto& [name, value] : worker.environment) {
      text += "  " + name + "=" + quoted(value) + " \\\n";
    }
    text += " ";
    for (const auto& argument : worker.argv) {
      text += " " + quoted(argument);
    }
    text += "\n";
  }
  return text;
}

}  // namespace launcher
