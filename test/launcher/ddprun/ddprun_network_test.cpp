#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
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

/// A job of two hosts with workers that wait for a signal.
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

TEST_CASE("a loopback that does not work is said before the workers start") {
  const std::string command =
      GENERATE("true",
               "ip link set lo up && ip address del 127.0.0.1/8 dev lo",
               "ip link set lo up");
  const auto enter = enter_network(command);
  if (!enter) {
    WARN("skipped: no network namespace can be made: only root may");
    return;
  }
  const Result result = run_ddprun({"echo", "here"}, {}, "", {}, enter);
  CHECK(result.code() == 0);
  CHECK(result.out == "[0] here\n");
  const bool is_well = command == "ip link set lo up";
  CHECK(result.err ==
        (is_well ? ""
                 : "ddprun: expected to reach 127.0.0.1, where the ranks of "
                   "this host meet, but got no route to it; bring the "
                   "loopback up with this address (ip link set lo up)\n"));
}

namespace {

/// Makes a network with two ports for connections, and sockets of another
/// program, which the job's ddprun inherits.
std::function<void()> enter_two_ports(const std::function<void(int)>& take) {
  return enter_network(
      "ip link set lo up && "
      "echo 40000 40001 > /proc/sys/net/ipv4/ip_local_port_range",
      [take] {
        take(40000);
        take(40001);
      });
}

void take_port(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int server = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::bind(server,
             reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) != 0 ||
      ::listen(server, 1) != 0) {
    ::_exit(97);
  }
}

/// Takes the abstract name by which two ddpruns with one port know each other.
void take_name(int port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "ddprun port " + std::to_string(port);
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (::bind(server,
             reinterpret_cast<const sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                    name.size())) != 0) {
    ::_exit(97);
  }
}

}  // namespace

TEST_CASE("nobody can keep a job from a free port by its name") {
  const auto enter = enter_two_ports(take_name);
  if (!enter) {
    WARN("skipped: no network namespace can be made: only root may");
    return;
  }
  const Result free = run_ddprun({"true"}, {}, "", {}, enter);
  CHECK(free.code() == 0);
  CHECK(free.err == "");
  const Result chosen =
      run_ddprun({"--master-port=40000", "true"}, {}, "", {}, enter);
  CHECK(chosen.code() == 1);
  CHECK_THAT(chosen.err, Contains("port 40000 is in use on this host"));
}

TEST_CASE("without a free port there is a sentence for it") {
  const auto enter = enter_two_ports(take_port);
  if (!enter) {
    WARN("skipped: no network namespace can be made: only root may");
    return;
  }
  const Result result = run_ddprun({"true"}, {}, "", {}, enter);
  CHECK(result.code() == 1);
  CHECK(result.err ==
        "ddprun: no port of net.ipv4.ip_local_port_range is free on this host "
        "for rank 0's store; end programs that have many connections, or give "
        "a --master-port out of that range\n");
  CHECK(run_ddprun({"--master-port=30000", "true"}, {}, "", {}, enter).code() ==
        0);
}
