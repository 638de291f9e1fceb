#include "launcher/cli/options.h"

#include <csignal>
#include <functional>
#include <stdexcept>

#include "launcher/cli/command_line.h"
#include "launcher/error.h"

namespace launcher {
namespace {

constexpr int kDefaultPort = 29500;

/// What the options say before they are put together.
struct RawOptions {
  LaunchOptions options;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  std::optional<Endpoint> endpoint;
  std::string backend;
  bool standalone = false;
};

template <typename T, typename Parse>
CommandLine::Setter into(T& target, Parse parse) {
  return [&target, parse](const std::string& text) { target = parse(text); };
}

std::string as_text(const std::string& text) {
  return text;
}

std::function<int(const std::string&)> integer(int least, int most) {
  return
      [=](const std::string& text) { return parse_integer(text, least, most); };
}

void bind_workers(CommandLine& line, RawOptions& raw) {
  LaunchOptions& options = raw.options;
  line.value("nproc-per-node",
             "N|auto|gpu|cpu",
             "Workers on this host [1, or one per --gpus]; auto: one per GPU, "
             "without GPUs one per CPU",
             into(options.worker_count, parse_worker_count));
  line.value("gpus",
             "ID,...",
             "GPUs for the workers, as in CUDA_VISIBLE_DEVICES",
             into(options.gpus, parse_list));
  line.value("max-restarts",
             "N",
             "Starts all workers of this host again up to N times when one "
             "fails [0]",
             into(options.max_restarts, integer(0, 1 << 30)));
  line.value("grace-period",
             "SECONDS",
             "Time to end after SIGTERM (or the signal passed on) before "
             "SIGKILL [30]",
             into(options.grace_period, parse_seconds));
  line.value("role",
             "NAME",
             "ROLE_NAME of the workers [default]",
             into(options.role, as_text));
  line.value("signals-to-handle",
             "SIG,...",
             "Signals that are passed on and end the job "
             "[SIGTERM,SIGINT,SIGHUP,SIGQUIT]",
             into(options.signals, parse_signals));
  line.values("env-rank",
              "NAME=VALUE",
              "Sets NAME for each worker; {rank} and {local_rank} in VALUE are "
              "its numbers (can be given several times)",
              [&options](const std::string& text) {
                options.rank_variables.push_back(parse_rank_variable(text));
              });
}

void bind_hosts(CommandLine& line, RawOptions& raw) {
  LaunchOptions& options = raw.options;
  line.toggle("standalone",
              "One host, with a free port of its own; beats --master-* and "
              "--rdzv-*",
              [&raw] { raw.standalone = true; });
  line.value("nnodes",
             "N",
             "Hosts of the job, each with its own ddprun [1]",
             into(options.host_count, parse_host_count));
  line.value("node-rank",
             "N",
             "Rank of this host [0]",
             into(options.host_rank, integer(0, 1 << 24)));
  line.value("master-addr",
             "HOST",
             "Name or address of the host with --node-rank 0 [127.0.0.1]",
             into(raw.master_addr, as_text));
  line.value("master-port",
             "PORT",
             "Port for rank 0's store [a free one; 29500 with several hosts]",
             into(raw.master_port, integer(0, 65535)));
  line.value("rdzv-endpoint",
             "HOST[:PORT]",
             "The same as --master-addr and --master-port",
             into(raw.endpoint, parse_endpoint));
  line.value("rdzv-backend",
             "NAME",
             "static, or c10d for one host [static]",
             into(raw.backend, as_text));
  line.value("rdzv-id",
             "ID",
             "TORCHELASTIC_RUN_ID, also in the name of the log folder",
             into(options.run_id, as_text));
}

void bind_output(CommandLine& line, RawOptions& raw) {
  LaunchOptions& options = raw.options;
  line.value("log-dir",
             "DIR",
             "Folder for <run id>_<random>/attempt_<n>/<local rank>/"
             "{stdout.log,stderr.log,error.json}",
             into(options.log_dir, as_text));
  line.value("redirects",
             "MAP",
             "Streams that go to files instead of here: 0 none, 1 stdout, 2 "
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
             "Shows the output of these local ranks only; files have all",
             into(options.shown_ranks, parse_ranks));
  line.toggle("dry-run",
              "Prints each worker's environment and command, starts nothing",
              [&options] { options.dry_run = true; });
}

void bind_program(CommandLine& line, RawOptions& raw) {
  const auto choose = [&raw](ProgramKind kind) {
    return [&raw, kind] {
      if (raw.options.program_kind != ProgramKind::by_name) {
        throw UsageError(
            "--module, --no-python and --run-path: expected at most one of "
            "them");
      }
      raw.options.program_kind = kind;
    };
  };
  line.toggle("module",
              "Runs PROGRAM as `python -m` does",
              choose(ProgramKind::module),
              "m");
  line.toggle("no-python",
              "Runs PROGRAM as it is, also when it ends in .py",
              choose(ProgramKind::executable));
  line.toggle("run-path",
              "Runs PROGRAM by Python, whatever its name",
              choose(ProgramKind::python));
}

void bind_torchrun_only(CommandLine& line) {
  const std::string help = "Accepted for torchrun's sake, without effect";
  const CommandLine::Setter ignore = [](const std::string&) {};
  line.value("monitor-interval", "SECONDS", help, ignore);
  line.value("start-method", "NAME", help, ignore);
  line.value("rdzv-conf", "K=V,...", help, ignore);
  line.value("local-addr", "HOST", help, ignore);
}

/// Where rank 0's store will listen: the options about it, put together.
Endpoint resolve_master(const RawOptions& raw) {
  const bool one_host = raw.options.host_count == 1;
  if (raw.standalone) {
    return {"127.0.0.1", 0};
  }
  Endpoint result{raw.master_addr.value_or(one_host ? "127.0.0.1" : ""),
                  raw.master_port.value_or(0)};
  if (raw.endpoint) {
    result.host = raw.endpoint->host;
    result.port = raw.endpoint->port != 0 ? raw.endpoint->port : result.port;
  }
  if (result.host.empty()) {
    throw UsageError(
        "--master-addr: expected the name of the host with --node-rank 0, but "
        "got none; every host of a job with several needs it");
  }
  if (!one_host && result.port == 0) {
    result.port = kDefaultPort;
  }
  return result;
}

void check_hosts(const RawOptions& raw) {
  const LaunchOptions& options = raw.options;
  const std::string hosts = std::to_string(options.host_count);
  if (options.host_rank >= options.host_count) {
    throw UsageError("--node-rank: expected a rank below --nnodes (" + hosts +
                     "), but got " + std::to_string(options.host_rank));
  }
  if (raw.standalone && options.host_count != 1) {
    throw UsageError("--standalone: expected one host, but got --nnodes " +
                     hosts + "; leave one of the two out");
  }
  const bool c10d = raw.backend == "c10d";
  if (!raw.standalone && !raw.backend.empty() && raw.backend != "static" &&
      !c10d) {
    throw UsageError("--rdzv-backend: expected static or c10d, but got \"" +
                     raw.backend + "\"");
  }
  if (c10d && options.host_count != 1) {
    throw UsageError("--rdzv-backend: expected static for --nnodes " + hosts +
                     ", but got c10d; give --node-rank, --master-addr and "
                     "--master-port on every host");
  }
}

std::vector<std::string> program_of(std::vector<std::string> program) {
  if (!program.empty() && program.front() == "--") {
    program.erase(program.begin());
  } else if (!program.empty() && program.front().size() > 1 &&
             program.front()[0] == '-') {
    throw UsageError("unknown option " + program.front() +
                     "; see ddprun --help (options of the program come after "
                     "its name)");
  }
  if (program.empty() || program.front().empty()) {
    throw UsageError(
        "expected a program to start, but got none; for example: ddprun "
        "--nproc-per-node=4 ./train");
  }
  return program;
}

}  // namespace

std::variant<LaunchOptions, Information> parse_options(
    std::vector<std::string> arguments) {
  RawOptions raw;
  raw.options.signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  CommandLine line;
  bind_workers(line, raw);
  bind_hosts(line, raw);
  bind_output(line, raw);
  bind_program(line, raw);
  bind_torchrun_only(line);
  auto parsed = line.parse(std::move(arguments));
  if (auto* information = std::get_if<Information>(&parsed)) {
    return std::move(*information);
  }
  raw.options.program =
      program_of(std::get<std::vector<std::string>>(std::move(parsed)));
  check_hosts(raw);
  raw.options.master = resolve_master(raw);
  return raw.options;
}

}  // namespace launcher
