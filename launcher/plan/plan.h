#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/plan/job.h"
#include "launcher/plan/line_prefix.h"
#include "launcher/plan/world.h"

namespace launcher {

/// What differs between the first start of the workers and a restart.
struct Attempt {
  World world;
  std::string directory;  ///< of this attempt's files; empty: there are none
  /// Of the files by which workers and ddprun talk while they run.
  std::string progress_folder{};
  bool is_kept = true;  ///< `directory` outlives the attempt
  /// Of the file that says which workers have ended; empty: there is none.
  std::string ends_folder{};
};

/// One worker process to be.
struct WorkerSpec {
  int rank = 0;
  int local_rank = 0;
  std::vector<std::string> argv;
  Environment environment;    ///< what ddprun sets, beside what is inherited
  std::vector<int> cpus;      ///< that it may run on; empty: as ddprun
  LinePrefix prefix;          ///< before each of its lines
  std::string directory;      ///< of its files; empty: it has none
  std::string error_file;     ///< empty: none
  std::string progress_file;  ///< that it reports to; empty: none
  std::string stop_file;      ///< that tells it to end; empty: none
  Output output = Output::automatic;
  bool has_stdin = false;  ///< ddprun's
  StreamSet to_file;
  std::optional<mode_t> file_mode;  ///< none: umask says
  StreamSet to_console;
  StreamSet to_filtered;  ///< the lines that a filter lets through
};

/// A file of an attempt for those lines of its workers that hold one of some
/// texts.
struct LineFilter {
  std::string path;  ///< empty: there is none
  std::vector<std::string> texts;
  std::optional<mode_t> file_mode;  ///< none: umask says
};

struct LaunchPlan {
  std::string path;  ///< of the program
  std::vector<WorkerSpec> workers;
  std::string temporary_folder;       ///< of the attempt; empty: it outlives it
  std::vector<std::string> withheld;  ///< variables of the caller's
  LineFilter filtered_out;
  LineFilter filtered_err;
  std::optional<std::chrono::milliseconds> hang_timeout;
  std::string timer_file{};      ///< of torchrun's file timer; empty: none
  std::string ends_file{};       ///< says who has ended; empty: none
  bool has_other_hosts = false;  ///< ranks of the job run elsewhere, too
};

/// Every worker's rank, command and environment. Pure: touches nothing.
///
/// RANK is the world's first rank + local rank. The variables are torchrun's;
/// TORCHELASTIC_USE_AGENT_STORE is False, because rank 0 hosts the
/// store and ddprun has none. OMP_NUM_THREADS is set to 1 only when it is unset
/// and there are several workers. In the program's arguments `$local_rank` and
/// `${local_rank}` stand for the number and `$$` for a dollar. Where each
/// worker has a GPU of its own (--virtual-local-rank), LOCAL_RANK is 0 and
/// CUDA_VISIBLE_DEVICES names that one.
LaunchPlan make_plan(const Job& job, const Attempt& attempt);

/// torchrun's file timer is asked for: TORCHELASTIC_ENABLE_FILE_TIMER is 1.
bool has_file_timer(const Job& job);

/// The folder of an attempt, in the folder of the run: one for each world, so
/// that none is written a second time. Empty where the run has none.
std::string attempt_directory(const std::string& run_directory,
                              const World& world);

/// The plan as text: for every worker a command that a shell could run.
std::string describe(const LaunchPlan& plan);

}  // namespace launcher
