#include "launcher/job/launch.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "ddp/base/cluster/worker_env.h"
#include "launcher/base/error.h"
#include "launcher/base/fd.h"
#include "launcher/hosts/make_rendezvous.h"
#include "launcher/job/console_status.h"
#include "launcher/job/job_events.h"
#include "launcher/job/supervisor.h"
#include "launcher/machine/caller_settings.h"
#include "launcher/net/address.h"
#include "launcher/workers/job_directory.h"
#include "launcher/workers/output/run_directory.h"
#include "launcher/workers/process_runner.h"

namespace launcher {
namespace {

std::vector<int> signals_for(const Job& job) {
  std::vector<int> signals = signals_of_programs();
  signals.insert(
      signals.end(),
      {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH});
  signals.insert(
      signals.end(), job.options.signals.begin(), job.options.signals.end());
  if (job.options.on_preempt) {
    signals.push_back(job.options.on_preempt->signal);
  }
  return signals;
}

/// Makes room for the descriptors of all workers. To enlarge its table of
/// descriptors later, a process with threads waits for an RCU grace period,
/// about 10 ms, each time.
void enlarge_descriptor_table(int workers) {
  const Fd last(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 64 + 8 * workers));
}

/// Resources that the job holds while it runs.
struct JobResources {
  SignalScope signals;
  CallerSettings settings;
  JobDirectory job_directory;
  JobCgroup cgroup;
  Watcher watcher{cgroup};
  Strays strays;

  explicit JobResources(const Job& job)
      : signals(signals_for(job)), job_directory(job) {
    enlarge_descriptor_table(job.worker_count);
  }
};

/// The folder of the job's files. Its file server may not answer, so the thread
/// of the logs creates and removes it.
struct Folder {
  std::unique_ptr<const RunDirectory> made;
  std::optional<LaunchError> error;
};

void warn_of_folder(const RunDirectory& folder,
                    const Job& job,
                    Status& status) {
  if (!job.options.log_dir.empty()) {
    return;
  }
  if (folder.path().empty()) {
    status.warn(
        "no temporary folder can be written to, so workers have no error file; "
        "give a TMPDIR, or --log-dir=/dev/null if that is as it should be");
  } else if (folder.is_kept()) {
    status.warn("logs are in " + folder.path());
  }
}

struct Outcome {
  int exit_code;
  bool is_written;  // all output
};

Outcome run(const Job& job) {
  JobResources resources(job);
  EventLoop loop;
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  Consoles consoles(loop, losses);
  Log log(consoles.err(), job.environment);
  JobEvents events(loop);
  const auto post = [&events](const auto& event) { events.post(event); };
  const auto answer = [&post](const RendezvousAnswer& known) {
    std::visit(post, known);
  };
  const auto rendezvous =
      make_rendezvous(loop, job.options.rendezvous, job.host_name, answer);
  ProcessRunner workers({.loop = loop,
                         .consoles = consoles,
                         .logs = logs,
                         .cgroup = resources.cgroup,
                         .environment = job.environment,
                         .settings = resources.settings,
                         .cpu_count = job.cpu_count,
                         .watcher = resources.watcher,
                         .strays = resources.strays,
                         .post = [&post](const WorkersEvent& event) {
                           std::visit(post, event);
                         }});
  events.watch(resources.signals, [&workers] { workers.on_child_ended(); });
  const std::string* own_file =
      find_variable(job.environment, ddp::env::kErrorFile);
  ReportFiles files({.error = own_file != nullptr ? *own_file : "",
                     .json = job.options.report_json},
                    {.run_id = job.run_id,
                     .host = job.host_name,
                     .program = job.program.argv,
                     .max_restarts = job.options.max_restarts},
                    loop,
                    losses);
  losses.on_first_loss([&log](const std::string& line) { log.warn(line); });
  const auto on_drained = [&events] { events.post(OutputDrained{}); };
  ConsoleStatus status({.loop = loop,
                        .consoles = consoles,
                        .logs = logs,
                        .log = log,
                        .losses = losses,
                        .files = files,
                        .on_drained = on_drained});
  if (!job.options.cluster_note.empty()) {
    status.info(job.options.cluster_note);
  }
  for (const std::string& warning : job.warnings) {
    status.warn(warning);
  }
  const auto folder = std::make_shared<Folder>();
  logs.run(
      [folder, job] {
        folder->error = error_of(
            [&] { folder->made = std::make_unique<RunDirectory>(job); });
      },
      [&] {
        if (folder->error) {
          post(StartFailed{folder->error->exit_code(), folder->error->what()});
          return;
        }
        warn_of_folder(*folder->made, job, status);
        post(FolderMade{folder->made->path()});
      });
  Supervisor supervisor(job,
                        resources.job_directory.path(),
                        {.events = events,
                         .rendezvous = *rendezvous,
                         .workers = workers,
                         .status = status});
  const int code = supervisor.run();
  while (!rendezvous->is_over()) {
    loop.run_once();
  }
  logs.run([folder] { folder->made.reset(); }, [] {});
  const bool is_written = status.abandon_rest();
  const bool has_lost = !losses.empty();
  return {code == 0 && has_lost ? kExitFailure : code, is_written};
}

}  // namespace

int launch(const Job& job) {
  const Outcome outcome = run(job);
  if (!outcome.is_written) {
    ::_exit(outcome.exit_code);  // a thread may be blocked in a write
  }
  return outcome.exit_code;
}

std::string dry_run(const Job& job) {
  const RendezvousConfig& config = job.options.rendezvous;
  const Endpoint* store = given_store(config);
  const int hosts = host_count(config);
  RendezvousAnswer answer;
  const auto rendezvous = make_uncoordinated_rendezvous(
      {.master = store != nullptr ? *store : Endpoint{job.host_name, 0},
       .host_rank = host_rank(config).value_or(0),
       .host_count = hosts},
      [&](const RendezvousAnswer& given) { answer = given; });
  rendezvous->join({.worker_count = job.worker_count});
  if (const auto* lost = std::get_if<RendezvousLost>(&answer)) {
    throw LaunchError(kExitFailure, lost->text);
  }
  const World world = std::get<WorldFormed>(answer).world;
  std::string text;
  if (store == nullptr && hosts > 1) {
    text =
        "# --rdzv-backend=c10d assigns ranks and MASTER_ADDR when the hosts "
        "meet. These are of "
        "host " +
        std::to_string(world.host_rank) + " of " + std::to_string(hosts) +
        ".\n";
  }
  return text + describe(make_plan(
                    job,
                    {world,
                     attempt_directory(run_directory_pattern(job), world),
                     job_directory_pattern(job)}));
}

std::string make_run_id() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string id;
  for (int index = 0; index < 16; ++index) {
    id += kDigits[random() % 16];
  }
  return id;
}

}  // namespace launcher
