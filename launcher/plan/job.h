#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/machine/host.h"
#include "launcher/options/options.h"
#include "launcher/plan/program.h"

namespace launcher {

/// The command line together with what the machine said: nothing is left open.
struct Job {
  LaunchOptions options;
  Program program;
  Environment environment;            ///< ddprun's own that the workers inherit
  std::vector<std::string> withheld;  ///< names of those that they do not
  std::string host_name;
  int cpu_count = 1;                ///< that this process may use
  int worker_count = 1;             ///< on this host
  std::optional<std::string> gpus;  ///< CUDA_VISIBLE_DEVICES of the workers
  std::vector<std::string> gpu_of_worker;  ///< or of each; empty: they share
  int gpu_count = 0;                   ///< that they see; 0: none, or not known
  std::vector<std::vector<int>> cpus;  ///< by local rank; empty: not bound
  std::string run_id;
  std::vector<std::string> warnings;  ///< what the user should know before
};

/// Puts a job together.
///
/// Several hosts that do not meet cannot agree on a restart, so there is none:
/// max_restarts becomes 0, with a warning. Those that do get the rest of
/// their Meeting, its token by job_token().
///
/// @throws LaunchError for what the machine cannot do: GPUs it does not have, a
///   program it does not find, more ranks than can be counted
Job make_job(LaunchOptions options,
             const HostInfo& host,
             const Environment& environment,
             const std::string& unique_run_id);

}  // namespace launcher
