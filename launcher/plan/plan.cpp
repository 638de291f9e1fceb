#include "launcher/plan/plan.h"

#include <algorithm>
#include <utility>

#include "ddp/base/cluster/launch_environment.h"
#include "ddp/base/job_files/job_directory.h"
#include "launcher/base/exit_status.h"
#include "launcher/plan/name_template.h"

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

Environment environment_of(const Job& job,
                           const Attempt& attempt,
                           const WorkerSpec& worker) {
  const World& world = attempt.world;
  ddp::detail::LaunchedWorker launched;
  launched.rank = worker.rank;
  launched.world_size = world.world_size;
  launched.local_rank = job.gpu_of_worker.empty() ? worker.local_rank : 0;
  launched.local_world_size = job.worker_count;
  launched.host_rank = world.host_rank;
  launched.host_count = world.host_count;
  launched.role = job.options.role;
  launched.master_addr = world.master.host;
  launched.master_port = world.master.port;
  launched.restart_count = world.restarts;
  launched.max_restarts = job.options.max_restarts;
  launched.run_id = job.run_id;
  Environment changes =
      ddp::detail::launch_environment(launched, reader_of(job.environment));
  if (world.role) {
    changes[ddp::env::kRoleRank] =
        std::to_string(world.role->first_rank + worker.local_rank);
    changes[ddp::env::kRoleWorldSize] = std::to_string(world.role->size);
  }
  changes[ddp::env::kErrorFile] = worker.error_file;
  if (!attempt.job_directory.empty()) {
    changes[ddp::env::kJobDir] = attempt.job_directory;
  }
  changes["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signal_list(job.options.signals);
  if (job.gpus) {
    changes["CUDA_VISIBLE_DEVICES"] = *job.gpus;
  }
  if (!job.gpu_of_worker.empty()) {
    changes["CUDA_VISIBLE_DEVICES"] =
        job.gpu_of_worker[static_cast<size_t>(worker.local_rank)];
  }
  return changes;
}

/// Fills in the local rank in all arguments except the program's name.
std::vector<std::string> argv_of(const Program& program, int local_rank) {
  std::vector<std::string> argv = program.argv;
  for (size_t index = 1; index < argv.size(); ++index) {
    argv[index] = NameTemplate(argv[index])
                      .filled({{"local_rank", std::to_string(local_rank)}});
  }
  return argv;
}

/// Fills in torchrun's variable, else returns the rank.
std::string prefix_of(const Job& job, const WorkerSpec& worker) {
  const std::string* chosen =
      find_variable(job.environment, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  return NameTemplate(chosen != nullptr && !chosen->empty() ? *chosen
                                                            : "[${rank}] ")
      .filled({{"rank", std::to_string(worker.rank)},
               {"local_rank", std::to_string(worker.local_rank)},
               {"role_name", job.options.role}});
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
  worker.output = options.output;
  worker.to_file = {.out = redirect.out || tee.out,
                    .err = redirect.err || tee.err};
  worker.to_console = {.out = shown && (tee.out || !redirect.out),
                       .err = shown && (tee.err || !redirect.err)};
  worker.to_filtered = {
      .out = shown && tee.out && !options.out_filters.empty(),
      .err = shown && tee.err && !options.err_filters.empty()};
}

std::string quoted(const std::string& text) {
  const bool plain =
      !text.empty() && text.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyz"
                           "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789_@%+=:,./-") == std::string::npos;
  return plain ? text : "'" + replaced(text, "'", "'\\''") + "'";
}

/// Returns the filter if a worker's stream uses it. As in torchrun, the filter
/// applies only to streams of ranks with --tee.
LineFilter if_used(const LaunchPlan& plan,
                   bool StreamSet::*stream,
                   const LineFilter& filter) {
  const bool is_used = std::any_of(
      plan.workers.begin(), plan.workers.end(), [&](const WorkerSpec& worker) {
        return worker.to_filtered.*stream;
      });
  return is_used ? filter : LineFilter{};
}

}  // namespace

LaunchPlan make_plan(const Job& job, const Attempt& attempt) {
  LaunchPlan plan;
  plan.path = job.program.path;
  plan.withheld = job.withheld;
  plan.temporary_folder = attempt.is_kept ? "" : attempt.directory;
  plan.hang_timeout = job.options.hang_timeout;
  plan.has_other_hosts = attempt.world.host_count > 1;
  for (int local_rank = 0; local_rank < job.worker_count; ++local_rank) {
    WorkerSpec worker;
    worker.local_rank = local_rank;
    worker.rank = attempt.world.first_rank + local_rank;
    if (!attempt.directory.empty()) {
      worker.directory = attempt.directory + "/" + std::to_string(local_rank);
      worker.error_file = worker.directory + "/error.json";
    }
    if (!attempt.job_directory.empty()) {
      const auto files = ddp::detail::files_of_rank(
          attempt.job_directory, std::to_string(worker.rank));
      worker.progress_file = files.progress;
      worker.stop_file = files.stop;
    }
    worker.environment = environment_of(job, attempt, worker);
    worker.prefix = prefix_of(job, worker);
    if (!job.cpus.empty()) {
      worker.cpus = job.cpus[static_cast<size_t>(local_rank)];
    }
    worker.has_stdin = job.has_stdin && local_rank == 0;
    choose_targets(job.options, worker);
    worker.argv = argv_of(job.program, local_rank);
    plan.workers.push_back(std::move(worker));
  }
  if (!attempt.directory.empty()) {
    const LaunchOptions& options = job.options;
    plan.filtered_out = if_used(
        plan,
        &StreamSet::out,
        {attempt.directory + "/filtered_stdout.log", options.out_filters});
    plan.filtered_err = if_used(
        plan,
        &StreamSet::err,
        {attempt.directory + "/filtered_stderr.log", options.err_filters});
  }
  return plan;
}

std::string attempt_directory(const std::string& run_directory,
                              const World& world) {
  return run_directory.empty()
             ? ""
             : run_directory + "/attempt_" + std::to_string(world.generation);
}

std::string describe(const LaunchPlan& plan) {
  std::string command = "env";
  for (const std::string& name : plan.withheld) {
    command += " -u " + name;
  }
  std::string text;
  for (const WorkerSpec& worker : plan.workers) {
    text +=
        "# rank " + std::to_string(worker.rank) + ", local rank " +
        std::to_string(worker.local_rank) + "\n" +
        (worker.cpus.empty() ? ""
                             : "taskset -c " + cpu_list(worker.cpus) + " ") +
        command + " \\\n";
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
