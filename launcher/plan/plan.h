#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/plan/job.h"
#include "launcher/plan/world.h"

namespace launcher {

/// Values that differ between the first start of the workers and a restart.
struct Attempt {
  World world;
  std::string directory;        ///< of this attempt's files; empty: none
  std::string job_directory{};  ///< DDPRUN_JOB_DIR; empty: none
  bool is_kept = true;          ///< `directory` is kept after the attempt
};

/// Description of a worker process.
struct WorkerSpec {
  int rank = 0;
  int local_rank = 0;
  std::vector<std::string> argv;
  Environment environment;    ///< variables added to the inherited ones
  std::vector<int> cpus;      ///< CPUs to run on; empty: ddprun's
  std::string prefix;         ///< prefix of each of its lines
  std::string directory;      ///< of its files; empty: none
  std::string error_file;     ///< empty: none
  std::string progress_file;  ///< for its progress reports; empty: none
  std::string stop_file;      ///< for its stop request; empty: none
  Output output = Output::lines;
  bool has_stdin = false;  ///< inherits ddprun's stdin
  StreamSet to_file;
  StreamSet to_console;
  StreamSet to_filtered;  ///< streams that are filtered
};

/// A file for the lines of an attempt's workers that contain one of the texts.
struct LineFilter {
  std::string path;  ///< empty: none
  std::vector<std::string> texts;
};

struct LaunchPlan {
  std::string path;  ///< of the program
  std::vector<WorkerSpec> workers;
  std::string temporary_folder;  ///< to remove after the attempt; empty: none
  std::vector<std::string> withheld;  ///< variables that are not inherited
  LineFilter filtered_out;
  LineFilter filtered_err;
  std::optional<std::chrono::milliseconds> hang_timeout;
  bool has_other_hosts = false;  ///< ranks of the job run elsewhere, too
};

/// Plans every worker's rank, command and environment. Pure function.
///
/// RANK is the world's first rank + local rank. The variables are torchrun's;
/// TORCHELASTIC_USE_AGENT_STORE is False, because rank 0 hosts the store and
/// ddprun has none. OMP_NUM_THREADS is set to 1 only if it is unset and there
/// are several workers. In the program's arguments, `$local_rank` and
/// `${local_rank}` stand for the number and `$$` for a dollar sign. If each
/// worker has its own GPU (--virtual-local-rank), LOCAL_RANK is 0 and
/// CUDA_VISIBLE_DEVICES names that GPU.
LaunchPlan make_plan(const Job& job, const Attempt& attempt);

/// Returns the folder of an attempt in the folder of the run. Each world has
/// its own, so that no folder is used twice. Empty if the run has no folder.
std::string attempt_directory(const std::string& run_directory,
                              const World& world);

/// Returns the plan as text: for every worker a shell command.
std::string describe(const LaunchPlan& plan);

}  // namespace launcher
