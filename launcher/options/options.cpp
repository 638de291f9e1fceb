#include "launcher/options/options.h"

#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>

#include "launcher/base/error.h"
#include "launcher/base/text.h"
#include "launcher/options/binding.h"
#include "launcher/options/command_line.h"
#include "launcher/options/host_options.h"
#include "launcher/options/output_options.h"
#include "launcher/options/program_options.h"
#include "launcher/options/query_flags.h"
#include "launcher/options/restart_values.h"
#include "launcher/options/setters.h"

namespace launcher {
namespace {

void bind_workers(CommandLine& line, LaunchOptions& options) {
  line.group("Workers");
  line.value("nproc-per-node",
             "N|auto|gpu|cpu",
             "Workers on this host [1, or one per --gpus]; auto: one per GPU, "
             "without GPUs one per CPU",
             into(options.worker_count, parse_worker_count));
  line.value("gpus",
             "ID,...",
             "GPUs for the workers, as in CUDA_VISIBLE_DEVICES",
             into(options.gpus, parse_list));
  line.toggle(
      "virtual-local-rank",
      "Each worker sees one GPU, which is its number 0: LOCAL_RANK is 0 "
      "for all",
      [&options] { options.virtual_local_rank = true; });
  line.value(
      "numa-binding",
      one_of(binding_names()),
      "CPUs that a worker runs on, near its GPU, or spread over the NUMA "
      "nodes: node, socket, exclusive (cores that no other worker has), "
      "core-complex (those that share a cache) [all]",
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
             "Starts all workers again, on all hosts, up to N times when one "
             "fails [0]",
             into(options.max_restarts, integer(0, 1 << 30)));
  line.value("final-codes",
             "CODE,...",
             "Exit codes of a worker that no restart follows; ddprun then ends "
             "with that code, which can tell a batch system not to requeue",
             into(options.final_codes, parse_exit_codes));
  line.value(
      "hang-timeout",
      "SECONDS",
      "A worker that reports progress and then none for so long has failed; "
      "how to report: ddp/progress.h, or any line written into the file "
      "$DDPRUN_JOB_DIR/progress_$RANK [never]",
      [&options](const std::string& text) {
        options.hang_timeout =
            std::chrono::ceil<std::chrono::milliseconds>(parse_interval(text));
      });
  line.value(
      "on-preempt",
      "SIGNAL[:SECONDS]",
      "At this signal workers that ask (ddp::stop_requested(), or the file "
      "$DDPRUN_JOB_DIR/stop_$RANK) are told to save and to end by "
      "themselves, others get it; after SECONDS SIGTERM. No restart follows, "
      "and 0 if all end with 0 [never; SECONDS: 30]",
      into(options.on_preempt, parse_preemption));
  line.value("preempt-code",
             "CODE",
             "Exit code if all workers have ended with 0 after the signal of "
             "--on-preempt, so that a script can start the job again [0]",
             into(options.preempt_code, parse_exit_code));
  line.value("grace-period",
             "SECONDS",
             "Time to end after SIGTERM (or the signal passed on) before "
             "SIGKILL [30]",
             into(options.grace_period, parse_seconds));
  line.value("signals-to-handle",
             "SIG,...",
             "Signals that are passed on and end the job "
             "[SIGTERM,SIGINT,SIGHUP,SIGQUIT]",
             into(options.signals, parse_signals));
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

/// A command line and the objects that receive its values.
struct BoundLine {
  LaunchOptions options;
  HostOptions hosts;
  ProgramOptions program;
  QueryFlags question;
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
                "Prints each worker's environment and command, starts nothing",
                [this] { options.dry_run = true; });
    question.bind(line);
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
  auto& [options, hosts, program, question, line] = bound;
  auto parsed = line.parse(std::move(arguments), environment);
  if (auto* information = std::get_if<Information>(&parsed)) {
    return std::move(*information);
  }
  question.check();
  auto rest = std::get<std::vector<std::string>>(std::move(parsed));
  if (!question.is_doctor || !rest.empty()) {
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
  if (question.is_doctor) {
    return DoctorOptions{std::move(options), question.as_json};
  }
  return std::move(options);
}

}  // namespace launcher
