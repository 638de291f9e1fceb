#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/machine/host.h"
#include "launcher/options/options.h"
#include "launcher/plan/program.h"

namespace launcher {

/// The command line completed with the machine's properties: all values are
/// decided.
struct Job {
  LaunchOptions options;
  Program program;
  Environment environment;  ///< variables that the workers inherit
  /// Names of variables that workers do not inherit.
  std::vector<std::string> withheld;
  std::string host_name;
  int cpu_count = 1;                ///< CPUs that this process may use
  int worker_count = 1;             ///< on this host
  std::optional<std::string> gpus;  ///< CUDA_VISIBLE_DEVICES of the workers
  /// GPU of each worker; empty: shared
  std::vector<std::string> gpu_of_worker;
  int gpu_count = 0;      ///< visible to workers; 0: none or unknown
  bool has_stdin = true;  ///< local rank 0 inherits ddprun's
  std::vector<std::vector<int>> cpus;  ///< by local rank; empty: not bound
  std::string run_id;
  std::vector<std::string> warnings;  ///< shown to the user before the start
};

/// Creates a job from the command line.
///
/// Static hosts without a coordinator cannot agree on a restart, so
/// max_restarts becomes 0, with a warning. For hosts with a coordinator,
/// completes their CoordinatedConfig; its token is DDPRUN_TOKEN.
///
/// @throws LaunchError if the machine cannot run the job: missing GPUs, a
///   program that is not found, or more ranks than an int can count
Job make_job(LaunchOptions options,
             const HostInfo& host,
             const Environment& environment,
             const std::string& unique_run_id);

}  // namespace launcher
