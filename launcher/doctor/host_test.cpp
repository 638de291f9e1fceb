#include "launcher/doctor/host_test.h"

#include <algorithm>
#include <csignal>
#include <sstream>
#include <utility>

#include "launcher/base/overloaded.h"
#include "launcher/doctor/job_output.h"
#include "launcher/doctor/paths/path_messages.h"
#include "launcher/doctor/paths/path_test.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMostWait{120'000};
constexpr milliseconds kGrace{5'000};
/// Upper bound for the test and the end of its job.
constexpr milliseconds kTestTime{200'000};

milliseconds wait_for_hosts(const CoordinatedConfig& config) {
  return std::min(config.timeouts.join, kMostWait);
}

/// Returns the user's rendezvous, changed so that the test also runs if hosts
/// are missing.
RendezvousConfig test_rendezvous(RendezvousConfig config) {
  if (const auto* fixed = std::get_if<StaticConfig>(&config)) {
    // Fixed ranks would require all hosts.
    C10dConfig c10d{*fixed, fixed->coordinator};
    c10d.terms.ranks_are_fixed = false;
    config = std::move(c10d);
  }
  CoordinatedConfig& common = *coordinated(config);
  const milliseconds wait = wait_for_hosts(common);
  if (common.terms.least_hosts > 1) {
    common.timeouts.last_call = wait;
  }
  common.timeouts.join = wait;
  common.terms.least_hosts = 1;
  common.start_hosts = common.terms.most_hosts;
  return config;
}

LaunchOptions test_job(const LaunchOptions& options, const TestedHost& host) {
  LaunchOptions job;
  job.worker_count = WorkerCount{};
  job.rendezvous = test_rendezvous(options.rendezvous);
  job.max_restarts = options.max_restarts;
  job.restart_rules = options.restart_rules;
  job.role = options.role;
  job.run_id = (options.run_id.empty() ? "none" : options.run_id) + "-doctor";
  job.grace_period = kGrace;
  job.line_prefix = "";
  job.stdin_rank.reset();
  job.signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  job.program_kind = ProgramKind::executable;
  job.program = {own_path(),
                 kPathTestArgument,
                 host.name,
                 host.address,
                 host.rank ? std::to_string(*host.rank) : ""};
  return job;
}

/// Removes "ddprun: " from the beginning of a line.
std::string without_name(const std::string& line) {
  const std::string name = "ddprun: ";
  return line.rfind(name, 0) == 0 ? line.substr(name.size()) : line;
}

/// Collects the messages of a worker. A PathHello starts over: the workers were
/// restarted.
class Collector {
 public:
  void operator()(const PathHello& hello) {
    facts_ = {};
    facts_.own = hello.rank;
    is_whole_ = false;
  }
  void operator()(const PathPeers& peers) {
    facts_.hosts.clear();
    for (const PathPeer& peer : peers.peers) {
      facts_.hosts.push_back(peer.host);
    }
    facts_.has_all = facts_.own == 0;
  }
  void operator()(const PathReport& report) {
    const auto count = static_cast<int>(facts_.hosts.size());
    for (int to = 0; to < count; ++to) {
      if (to == report.rank) {
        continue;
      }
      const auto known = std::find_if(
          report.paths.begin(), report.paths.end(), [&](const PathFacts& path) {
            return path.to == to;
          });
      PathFacts path =
          known == report.paths.end() ? PathFacts{.to = to} : *known;
      path.from = report.rank;
      facts_.paths.push_back(std::move(path));
    }
  }
  void operator()(const PathRound&) {}
  void operator()(const PathEnd& end) {
    facts_.lost = end.lost;
    is_whole_ = true;
  }
  void operator()(const PathFailure& failure) { facts_.error = failure.text; }

  HostsFacts facts() {
    const auto count = static_cast<int>(facts_.hosts.size());
    if (!is_whole_ || facts_.own >= count) {
      HostsFacts none;
      none.error = facts_.error;
      return none;
    }
    return facts_;
  }

 private:
  HostsFacts facts_;
  bool is_whole_ = false;
};

}  // namespace

HostsFacts parse_path_test(const std::string& out) {
  Collector collector;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (const auto message = decode_path(line)) {
      std::visit(collector, *message);
    }
  }
  return collector.facts();
}

HostsFacts test_hosts(const LaunchOptions& options,
                      const TestedHost& host,
                      const Environment& environment,
                      const std::function<void(const std::string&)>& tell) {
  const CoordinatedConfig& config = *coordinated(options.rendezvous);
  const milliseconds wait = wait_for_hosts(config);
  const JobOutput output =
      run_job(test_job(options, host),
              without_own_options(environment),
              wait + kTestTime,
              [&](const std::string& line) { tell(without_name(line)); });
  HostsFacts facts = parse_path_test(output.out);
  if (facts.hosts.empty() && facts.error.empty()) {
    const std::string reason = without_name(reason_in(output.err));
    facts.error = reason.empty()
                      ? "the test of the hosts ended without a result"
                      : reason;
  }
  facts.place = place_text(options.rendezvous);
  facts.least_hosts = config.terms.least_hosts;
  facts.most_hosts = config.terms.most_hosts;
  facts.ranks_are_fixed = config.terms.ranks_are_fixed;
  if (static_cast<int>(facts.hosts.size()) < facts.most_hosts) {
    facts.waited_seconds =
        static_cast<int>(std::chrono::ceil<std::chrono::seconds>(wait).count());
  }
  return facts;
}

}  // namespace launcher
