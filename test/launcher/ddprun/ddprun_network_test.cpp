#include <csignal>
#include <memory>
#include <optional>

#include "test/launcher/ddprun/networks.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher::test;

// Hosts that lose each other, each in a network namespace of its own.
namespace {

/// A job of two hosts whose workers wait for a signal.
class TwoHosts {
 public:
  TwoHosts(const Networks& networks, const std::string& backend) {
    for (const int host : {0, 1}) {
      hosts_[host] = std::make_unique<Ddprun>(
          Ddprun::Arguments{"--nnodes=2",
                            "--rdzv-backend=" + backend,
                            "--rdzv-endpoint=" + Networks::address(0) +
                                (backend == "c10d" ? ":29400" : ":29500"),
                            "--node-rank=" + std::to_string(host),
                            "--rdzv-id=job",
                            "--rdzv-conf=keep_alive_interval=0.5",
                            resource("on_signal"),
                            "exit"},
          std::map<std::string, std::string>{{"DDPRUN_TOKEN", "secret"}},
          "",
          Bound(),
          networks.enter(host));
    }
    for (const int host : {0, 1}) {
      hosts_[host]->await_out("ready");
    }
  }

  Ddprun& operator[](int host) { return *hosts_[host]; }

  ~TwoHosts() { go_on(); }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  void stop(int host) {
    stopped_ = host;
    hosts_[host]->signal(SIGSTOP);
  }
  /// Continues a stopped host, also after a failed test: a stopped process does
  /// not notice the end of the test.
  void go_on() {
    if (stopped_) {
      hosts_[*stopped_]->signal(SIGCONT);
      stopped_.reset();
    }
  }

 private:
  std::unique_ptr<Ddprun> hosts_[2];
  std::optional<int> stopped_;
};

/// Returns the text by which host 1 names the host of its only connection.
std::string lost_place(const std::string& backend) {
  return "the connection to " + Networks::address(0) +
         (backend == "c10d" ? ":29400" : ":29600") +
         ", where the hosts of the job meet, was lost";
}

constexpr const char* kLostHost =
    "host host1 has vanished (silent for 1500 ms) and the job cannot do "
    "without it";

}  // namespace

TEST_CASE("hosts meet though they mean two addresses of rank 0 by its name") {
  Networks networks;
  if (!networks.error().empty()) {
    WARN("skipped: " << networks.error());
    return;
  }
  const ddp::test::TemporaryFolder folder;
  const std::string backend = GENERATE("static", "c10d");
  CAPTURE(backend);
  std::unique_ptr<Ddprun> hosts[2];
  for (const int host : {0, 1}) {
    const std::string names = folder.path() + "/hosts" + std::to_string(host);
    ddp::test::write_file(
        names,
        (host == 0 ? Networks::unreachable_address(0) : Networks::address(0)) +
            " node1\n");
    hosts[host] = std::make_unique<Ddprun>(
        Ddprun::Arguments{"--nnodes=2",
                          "--rdzv-backend=" + backend,
                          "--rdzv-endpoint=node1:29500",
                          "--node-rank=" + std::to_string(host),
                          "--rdzv-id=job",
                          "--rdzv-conf=join_timeout=10",
                          "/bin/true"},
        std::map<std::string, std::string>{{"DDPRUN_TOKEN", "secret"}},
        "",
        Bound(),
        with_hosts_file(names, networks.enter(host)));
  }
  for (const int host : {0, 1}) {
    const Result result = hosts[host]->finish();
    CHECK(result.code() == 0);
    CHECK(result.err == "");
  }
}

TEST_CASE("a cut cable ends both hosts, and each names the other") {
  Networks networks;
  if (!networks.error().empty()) {
    WARN("skipped: " << networks.error());
    return;
  }
  const std::string backend = GENERATE("static", "c10d");
  CAPTURE(backend);
  TwoHosts hosts(networks, backend);
  networks.cut();
  const Result first = hosts[0].finish();
  const Result second = hosts[1].finish();
  CHECK(first.code() == 1);
  CHECK(second.code() == 1);
  CHECK_THAT(first.err, Contains(kLostHost));
  CHECK_THAT(second.err, Contains(lost_place(backend)));
  CHECK(!first.left_something);
  CHECK(!second.left_something);
}

TEST_CASE("a host whose ddprun stands still is missed by the other") {
  Networks networks;
  if (!networks.error().empty()) {
    WARN("skipped: " << networks.error());
    return;
  }
  const std::string backend = GENERATE("static", "c10d");
  const int stopped = GENERATE(0, 1);
  CAPTURE(backend, stopped);
  TwoHosts hosts(networks, backend);
  hosts.stop(stopped);
  const Result other = hosts[1 - stopped].finish();
  CHECK(other.code() == 1);
  CHECK_THAT(other.err,
             Contains(stopped == 1 ? kLostHost : lost_place(backend)));
  hosts.go_on();
  const Result late = hosts[stopped].finish();
  CHECK(late.code() == 1);
  CHECK(!late.left_something);
}

TEST_CASE("the host where the others meet is killed: they end at once") {
  Networks networks;
  if (!networks.error().empty()) {
    WARN("skipped: " << networks.error());
    return;
  }
  const std::string backend = GENERATE("static", "c10d");
  CAPTURE(backend);
  TwoHosts hosts(networks, backend);
  hosts[0].signal(SIGKILL);
  const Result left = hosts[1].finish();
  CHECK(left.code() == 1);
  CHECK_THAT(left.err,
             Contains(lost_place(backend)) &&
                 Contains("nobody listens there any more"));
  CHECK(!left.left_something);
}

TEST_CASE("a name server that never answers is an error in time") {
  const ddp::test::TemporaryFolder folder;
  const auto enter = enter_silence(folder.path());
  if (!enter) {
    WARN("skipped: no network namespace can be made: only root may");
    return;
  }
  const Result result = run_ddprun({"--nnodes=2",
                                    "--rdzv-backend=c10d",
                                    "--rdzv-endpoint=node7:29400",
                                    "--rdzv-conf=join_timeout=0.2",
                                    "true"},
                                   {{"DDPRUN_TOKEN", "secret"}},
                                   "",
                                   {},
                                   enter);
  CHECK(result.code() == 1);
  CHECK(result.err ==
        "ddprun: no ddprun answers at --rdzv-endpoint node7:29400 (the name "
        "service "
        "has not said yet which address host node7 has); start ddprun on that "
        "host, and check the name, the port and the firewall\n");
  CHECK(!result.left_something);
}
