#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/options/binding.h"
#include "launcher/options/command_line.h"
#include "launcher/options/health_check.h"
#include "launcher/options/meeting.h"
#include "launcher/options/preemption.h"
#include "launcher/options/restart_budget.h"
#include "launcher/options/status_options.h"
#include "launcher/options/values.h"

namespace launcher {

/// How the program after ddprun's own options is started.
enum class ProgramKind {
  by_name,     ///< a .py file by Python, anything else as it is
  python,      ///< --run-path: by Python, whatever its name
  module,      ///< -m: `python -m`
  executable,  ///< --no-python: as it is
};

/// ddprun's command line, parsed and checked value by value. What depends on
/// the machine is resolved later (see Job in plan.h).
struct LaunchOptions {
  std::optional<WorkerCount> worker_count;  ///< else the number of --gpus, or 1
  int host_count = 1;
  int host_rank = 0;
  Endpoint master{"127.0.0.1", 0};  ///< port 0: ddprun chooses a free one
  std::optional<Meeting> meeting;   ///< of several hosts that do
  RendezvousTimeouts patience;      ///< of several hosts
  std::optional<std::vector<std::string>> gpus;
  std::optional<Binding> numa_binding;
  int max_restarts = 0;
  RestartRules restart_rules;
  std::vector<int> final_codes;  ///< exit codes that no restart follows
  std::optional<std::chrono::milliseconds> time_limit;
  std::optional<std::chrono::milliseconds> hang_timeout;
  std::optional<Preemption> on_preempt;
  HealthCheck health_check;    ///< without a command: none
  bool stops_cleanly = false;  ///< --clean-stop
  std::chrono::milliseconds grace_period{30'000};
  std::string role = "default";
  std::string run_id;        ///< empty: made up
  std::string cluster_note;  ///< what a scheduler has said of the hosts
  std::string log_dir;
  std::optional<mode_t> log_mode;          ///< of log files; none: umask says
  std::optional<std::string> line_prefix;  ///< a NameTemplate
  std::string report_json;                 ///< a file; empty: none
  Output output = Output::automatic;
  std::optional<int> stdin_rank = 0;  ///< the local one; nothing: none
  StreamMap redirects;
  StreamMap tee;
  std::vector<std::string> out_filters;         ///< --duplicate-stdout-filters
  std::vector<std::string> err_filters;         ///< --duplicate-stderr-filters
  std::optional<std::vector<int>> shown_ranks;  ///< --local-ranks-filter
  std::vector<int> signals;
  std::vector<RankVariable> rank_variables;
  bool virtual_local_rank = false;  ///< each worker sees one GPU, its number 0
  ProgramKind program_kind = ProgramKind::by_name;
  bool logs_events = false;  ///< --event-log-handler=console
  bool dry_run = false;
  std::vector<std::string> program;  ///< its name and its own arguments
  std::vector<std::string>
      warnings;  ///< what was given and has no meaning here
};

/// --doctor: the machine is looked at, and nothing is started but a test.
struct DoctorOptions {
  LaunchOptions job;     ///< that it is to be fit for; may lack a program
  bool as_json = false;  ///< --json
};

/// Parses a command line. An option that is absent takes its value from the
/// environment variable PET_<NAME> (as with torchrun), else, for the hosts,
/// from the scheduler, else its default. Other variables PET_... are a warning
/// each, or with --strict an error.
///
/// @param arguments without the program's name
/// @param environment with the PET_ variables and the scheduler's
/// @throws UsageError with one line that names the option
///
/// Example:
/// @code
///   auto parsed = parse_options({"--nproc-per-node=4", "./train", "--lr=1"},
///   {}); std::get<LaunchOptions>(parsed).program;  // {"./train", "--lr=1"}
/// @endcode
std::variant<LaunchOptions, DoctorOptions, StatusOptions, Information>
parse_options(std::vector<std::string> arguments,
              const Environment& environment);

/// All options, in the order of --help.
std::vector<OptionGroup> option_table();

/// The manual page ddprun(1), from the same options as --help.
std::string manual();

}  // namespace launcher
