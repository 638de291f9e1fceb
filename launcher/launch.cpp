#include "launcher/launch.h"

#include <csignal>
#include <random>

#include "ddp/worker_env.h"
#include "launcher/output/log.h"
#include "launcher/process/descendants.h"
#include "launcher/process/guardian.h"
#include "launcher/process/job_cgroup.h"
#include "launcher/rendezvous/host_name.h"
#include "launcher/supervisor.h"

namespace launcher {
namespace {

std::unique_ptr<Rendezvous> make_rendezvous(const LaunchOptions& options) {
  require_resolvable(options.master.host);
  if (options.master.port == 0) {
    return make_local_rendezvous(options.master.host);
  }
  return make_static_rendezvous(options.master, options.host_rank);
}

std::vector<int> signals_for(const Job& job) {
  std::vector<int> signals = job.options.signals;
  signals.insert(signals.end(), {SIGUSR1, SIGUSR2});
  return signals;
}

}  // namespace

int launch(const Job& job) {
  SignalScope signals(signals_for(job));
  const auto rendezvous = make_rendezvous(job.options);
  const RunDirectory directory(job);
  const JobCgroup cgroup;
  const Guardian guardian(
      {.mark = std::string(ddp::env::kErrorFile) + "=" + directory.path() + "/",
       .cgroup = cgroup.path(),
       .directory = directory.is_kept() ? "" : directory.path()});
  become_subreaper();
  EventLoop loop;
  Consoles consoles(loop);
  Log log(consoles.err(), job.environment);
  if (directory.is_kept() && job.options.log_dir.empty()) {
    log.warn("logs are in ", directory.path());
  }
  Supervisor supervisor(job,
                        {.loop = loop,
                         .consoles = consoles,
                         .signals = signals,
                         .rendezvous = *rendezvous,
                         .directory = directory,
                         .cgroup = cgroup,
                         .log = log});
  return supervisor.run();
}

std::string rehearse(const Job& job) {
  Attempt attempt;
  attempt.master = make_rendezvous(job.options)->next();
  attempt.directory = run_directory_pattern(job) + "/attempt_0";
  return describe(make_plan(job, attempt));
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
