#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/options/command_line.h"
#include "launcher/options/rendezvous_config.h"
#include "launcher/options/values.h"

namespace launcher {

/// Ways to start the program after ddprun's own options.
enum class ProgramKind {
  by_name,     ///< a .py file by Python, other files directly
  python,      ///< --run-path: by Python, with any name
  module,      ///< -m: `python -m`
  executable,  ///< --no-python: directly
};

/// ddprun's command line, parsed and checked value by value. Values that depend
/// on the machine are resolved later; see Job.
struct LaunchOptions {
  std::optional<WorkerCount> worker_count{};  ///< else as many as --gpus, or 1
  RendezvousConfig rendezvous{};
  std::optional<std::vector<std::string>> gpus{};
  std::optional<Binding> numa_binding{};
  int max_restarts = 0;
  std::vector<int> final_codes{};  ///< exit codes without a restart
  std::optional<std::chrono::milliseconds> hang_timeout{};
  std::optional<Preemption> on_preempt{};
  std::optional<int> preempt_code{};
  std::chrono::milliseconds grace_period{30'000};
  std::string role = "default";
  std::string run_id{};        ///< empty: a generated id
  std::string cluster_note{};  ///< values that a scheduler gave
  std::string log_dir{};
  std::string report_json{};  ///< path of a file; empty: none
  Output output = Output::lines;
  StreamMap redirects{};
  StreamMap tee{};
  std::vector<std::string> out_filters{};  ///< --duplicate-stdout-filters
  std::vector<std::string> err_filters{};  ///< --duplicate-stderr-filters
  std::optional<std::vector<int>> shown_ranks{};  ///< --local-ranks-filter
  std::vector<int> signals{};
  bool virtual_local_rank = false;  ///< each worker sees one GPU, as number 0
  ProgramKind program_kind = ProgramKind::by_name;
  bool dry_run = false;
  std::vector<std::string> program{};   ///< its name and its arguments
  std::vector<std::string> warnings{};  ///< about options without effect
};

/// --doctor: examines the machine and starts only tests.
struct DoctorOptions {
  LaunchOptions job;  ///< job to examine for; may lack a program
};

/// Parses a command line. The value of an absent option comes from the
/// environment variable PET_<NAME> (as with torchrun), for hosts else from the
/// scheduler, else it is the default. Each other variable PET_... is a warning.
///
/// @param arguments  without ddprun's name
/// @param environment  with the PET_ variables and the scheduler's
/// @throws UsageError with one line that names the option
///
/// Example:
/// @code
///   auto parsed = parse_options({"--nproc-per-node=4", "./train", "--lr=1"},
///   {}); std::get<LaunchOptions>(parsed).program;  // {"./train", "--lr=1"}
/// @endcode
std::variant<LaunchOptions, DoctorOptions, Information> parse_options(
    std::vector<std::string> arguments, const Environment& environment);

/// All options, in the order of --help.
std::vector<OptionGroup> option_table();

/// The manual page ddprun(1), from the same options as --help.
std::string manual();

}  // namespace launcher
