#include "launcher/options/options.h"

#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>

#include "launcher/base/error.h"
#include "launcher/base/text.h"
#include "launcher/options/command_line.h"
#include "launcher/options/host_options.h"
#include "launcher/options/values.h"

namespace launcher {
namespace {

void bind_workers(CommandLine& line, LaunchOptions& options) {
  line.group("Workers");
  line.value("nproc-per-node",
             "N|auto|gpu|cpu",
             "Workers on this host; auto: one per GPU, without GPUs one "
             "per CPU [1, or one per --gpus]",
             into(options.worker_count, parse_worker_count));
  line.value("gpus",
             "ID,...",
             "GPUs to use, as in CUDA_VISIBLE_DEVICES",
             into(options.gpus, parse_list));
  line.toggle("virtual-local-rank",
              "Each worker sees one GPU, and LOCAL_RANK is 0",
              [&options] { options.virtual_local_rank = true; });
  line.value("numa-binding",
             one_of(binding_names()),
             "CPUs near a worker's GPU: of its node, of its socket, whole "
             "cores, those of a cache [all]",
             into(options.numa_binding, parse_binding));
  line.value("role",
             "NAME",
             "ROLE_NAME of the workers [default]",
             into(options.role, as_text));
}

void bind_ends(CommandLine& line, LaunchOptions& options) {
  line.group("Failures, restarts and signals");
  line.value("max-restarts",
             "N",
             "Starts all workers, on all hosts, again when one fails, up "
             "to N times [0]",
             into(options.max_restarts, integer(0, 1 << 30)));
  line.value("final-codes",
             "CODE,...",
             "Exit codes of a worker after which no restart follows; "
             "ddprun ends with that code",
             into(options.final_codes, parse_exit_codes));
  line.value(
      "hang-timeout",
      "SECONDS",
      "A worker that has reported progress (ddp/progress.h, or a "
      "line in the file $DDPRUN_JOB_DIR/progress_$RANK), and then "
      "none for so long, has failed [never]",
      [&options](const std::string& text) {
        options.hang_timeout =
            std::chrono::ceil<std::chrono::milliseconds>(parse_interval(text));
      });
  line.value("on-preempt",
             "SIGNAL[:SECONDS]",
             "At SIGNAL workers that ask (ddp::stop_requested() or the "
             "file $DDPRUN_JOB_DIR/stop_$RANK) are told to save and end; "
             "others get it, a program instead of its shell. After SECONDS "
             "[30] SIGTERM. No restart "
             "follows [never]",
             into(options.on_preempt, parse_preemption));
  line.value("preempt-code",
             "CODE",
             "Exit code if all workers end with 0 after the signal of "
             "--on-preempt [0]",
             into(options.preempt_code, parse_exit_code));
  line.value("grace-period",
             "SECONDS",
             "Time from SIGTERM, or the signal passed on, to SIGKILL [30]",
             into(options.grace_period, parse_seconds));
  line.value("signals-to-handle",
             "SIG,...",
             "Signals that are passed on and end the job "
             "[SIGTERM,SIGINT,SIGHUP,SIGQUIT]",
             into(options.signals, parse_signals));
}

void bind_output(CommandLine& line, LaunchOptions& options) {
  line.group("Output and logs");
  line.value("output",
             one_of(output_names()),
             "lines: each whole, with a prefix; where they go to a terminal "
             "alone, workers see one; inherit: ddprun's own stdout and stderr "
             "[lines]",
             into(options.output, parse_output));
  line.value("log-dir",
             "DIR",
             "Folder for <run id>_<random>/attempt_<n>/<local "
             "rank>/{stdout.log,stderr.log,error.json}",
             into(options.log_dir, as_text));
  line.value("redirects",
             "MAP",
             "Streams to files instead of here: 0 none, 1 stdout, 2 "
             "stderr, 3 both; or a map 0:3,1:0 [0]",
             into(options.redirects, parse_stream_map),
             "r");
  line.value("tee",
             "MAP",
             "Streams that go to files and here [0]",
             into(options.tee, parse_stream_map),
             "t");
  line.value("local-ranks-filter",
             "RANK,...",
             "Shows only the output of these local ranks",
             [&options](const std::string& text) {
               options.shown_ranks = text.empty()
                                         ? std::nullopt
                                         : std::optional(parse_ranks(text));
             });
  line.value("duplicate-stdout-filters",
             "TEXT,...",
             "Copies lines of --tee with one of the texts to "
             "filtered_stdout.log; ,, is a comma in a text",
             into(options.out_filters, parse_texts));
  line.value("duplicate-stderr-filters",
             "TEXT,...",
             "The same for stderr and filtered_stderr.log",
             into(options.err_filters, parse_texts));
  line.value("report-json",
             "FILE",
             "State and end of the job, its attempts and workers, for "
             "programs; replaced as a whole",
             into(options.report_json, as_text));
  const std::vector<std::string> handlers{
      "null", "console", "dynamic_rendezvous"};
  line.value(
      "event-log-handler",
      one_of(handlers),
      "Ignored: --report-json tells more",
      [handlers](const std::string& text) { parse_choice(text, handlers); });
}

void bind_torchrun_only(CommandLine& line, LaunchOptions& options) {
  line.group("For torchrun's command lines: checked, without effect");
  line.value("monitor-interval",
             "SECONDS",
             "Nothing is polled: a death is heard of at once",
             parse_interval);
  const std::vector<std::string> methods{"spawn", "fork", "forkserver"};
  line.value(
      "start-method",
      one_of(methods),
      "How torchrun starts Python's functions",
      [methods](const std::string& text) { parse_choice(text, methods); });
  line.value("logs-specs",
             "NAME",
             "A plugin for logs",
             [&options](const std::string& text) {
               if (!text.empty() && text != "default") {
                 options.warnings.push_back(
                     "--logs-specs=" + text +
                     " has no effect: it names a Python plugin, and logs are "
                     "laid out as by torchrun's default one");
               }
             });
  line.toggle("use-env", "LOCAL_RANK says the rank, as it always does", [] {});
}

/// Switches that choose how PROGRAM is started.
class ProgramOptions {
 public:
  /// Adds the switches to the command line.
  ///
  /// @param line must not outlive this object
  void bind(CommandLine& line);

  /// Returns the chosen kind. --run-path wins over the other two, as in
  /// torchrun.
  ///
  /// @throws UsageError for --module together with --no-python
  ProgramKind kind() const;

 private:
  bool module_ = false;
  bool no_python_ = false;
  bool run_path_ = false;
};

void ProgramOptions::bind(CommandLine& line) {
  line.group("Program");
  line.toggle(
      "module",
      "Runs PROGRAM as `python -m` does",
      [this] { module_ = true; },
      "m");
  line.toggle("no-python",
              "Runs PROGRAM as it is, also when it ends in .py",
              [this] { no_python_ = true; });
  line.toggle("run-path", "Runs PROGRAM by Python, whatever its name", [this] {
    run_path_ = true;
  });
}

ProgramKind ProgramOptions::kind() const {
  if (run_path_) {
    return ProgramKind::python;
  }
  if (module_ && no_python_) {
    throw UsageError(
        "--module: expected to be without --no-python, but got both; leave "
        "one out");
  }
  return module_      ? ProgramKind::module
         : no_python_ ? ProgramKind::executable
                      : ProgramKind::by_name;
}

/// Returns the program and its arguments from the rest of a command line after
/// its options.
///
/// @throws UsageError if there is no program, or for an unknown option
std::vector<std::string> program_of(std::vector<std::string> program,
                                    const CommandLine& line) {
  if (!program.empty() && program.front() == "--") {
    program.erase(program.begin());
  } else if (!program.empty() && program.front().size() > 1 &&
             program.front()[0] == '-') {
    throw UsageError("unknown option " + program.front() +
                     line.suggestion_for(program.front()) +
                     "; see ddprun --help (options of the program come after "
                     "its name)");
  } else if (program.size() > 1 && program[1] == "--") {
    // Python's argparse, and so torchrun, drops the first -- at both places.
    program.erase(program.begin() + 1);
  }
  if (program.empty() || program.front().empty()) {
    throw UsageError(
        "expected a program to start, but got none; for example: ddprun "
        "--nproc-per-node=4 ./train");
  }
  return program;
}

void check_output(const LaunchOptions& options) {
  if (options.output == Output::inherit && !options.tee.empty()) {
    throw UsageError(
        "--tee: expected to be without --output=inherit, by which ddprun does "
        "not see what workers write, but got both; leave one out");
  }
}

/// A command line and the objects that receive its values.
struct BoundLine {
  LaunchOptions options;
  HostOptions hosts;
  ProgramOptions program;
  bool is_doctor = false;
  CommandLine line;

  BoundLine() {
    options.signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    bind_workers(line, options);
    program.bind(line);
    bind_ends(line, options);
    bind_output(line, options);
    hosts.bind(line);
    bind_torchrun_only(line, options);
    line.group("Other");
    line.toggle("dry-run",
                "Only prints the workers' variables and commands",
                [this] { options.dry_run = true; });
    line.toggle("doctor",
                "Tells what would keep such a job from running well on this "
                "machine, and what to do; 1 if it would fail. For several "
                "hosts start ddprun OPTIONS ddprun-allreduce on each",
                [this] { is_doctor = true; });
  }
};

}  // namespace

std::vector<OptionGroup> option_table() {
  return BoundLine().line.describe();
}

std::string manual() {
  return man_page(option_table());
}

std::variant<LaunchOptions, DoctorOptions, Information> parse_options(
    std::vector<std::string> arguments, const Environment& environment) {
  BoundLine bound;
  auto& [options, hosts, program, is_doctor, line] = bound;
  auto parsed = line.parse(std::move(arguments), environment);
  if (auto* information = std::get_if<Information>(&parsed)) {
    return std::move(*information);
  }
  auto rest = std::get<std::vector<std::string>>(std::move(parsed));
  if (!is_doctor || !rest.empty()) {
    options.program = program_of(std::move(rest), line);
  }
  options.program_kind = program.kind();
  check_output(options);
  if (options.preempt_code && !options.on_preempt) {
    throw UsageError(
        "--preempt-code: expected --on-preempt, with the signal after which "
        "this code is used, but got none");
  }
  // torchrun silently accepts misspelt names.
  for (const auto& unknown :
       {line.unknown_variables(environment), hosts.unknown_settings()}) {
    options.warnings.insert(
        options.warnings.end(), unknown.begin(), unknown.end());
  }
  hosts.resolve(options, environment);
  for (std::string& warning : options.warnings) {
    warning = on_one_line(warning);
  }
  if (is_doctor) {
    return DoctorOptions{std::move(options)};
  }
  return std::move(options);
}

}  // namespace launcher
