#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <thread>

#include "launcher/doctor/port_holder.h"
#include "launcher/etcd/call.h"
#include "launcher/etcd/record.h"
#include "launcher/rendezvous/port.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;
using Arguments = Ddprun::Arguments;

// Hosts that meet by an etcd of the test's own, over loopback.
namespace {

bool is_etcd_there() {
  if (std::system(
          "{ command -v etcd && command -v etcdctl; } >/dev/null 2>&1") == 0) {
    return true;
  }
  WARN("skipped: etcd and etcdctl are not installed");
  return false;
}

class EtcdServer {
 public:
  EtcdServer() { start(); }
  ~EtcdServer() { kill(); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    }
  }

  /// With what it knew when it was killed.
  void start() {
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      const std::string log = folder_ / "log";
      if (std::freopen(log.c_str(), "a", stdout) != nullptr) {
        ::dup2(STDOUT_FILENO, STDERR_FILENO);
      }
      const std::string client = "http://127.0.0.1:" + port_text(client_);
      const std::string peer = "http://127.0.0.1:" + port_text(peer_);
      ::execlp("etcd",
               "etcd",
               "--data-dir",
               (folder_ / "data").c_str(),
               "--listen-client-urls",
               client.c_str(),
               "--advertise-client-urls",
               client.c_str(),
               "--listen-peer-urls",
               peer.c_str(),
               "--initial-advertise-peer-urls",
               peer.c_str(),
               "--initial-cluster",
               ("default=" + peer).c_str(),
               "--unsafe-no-fsync",
               static_cast<char*>(nullptr));
      ::_exit(127);
    }
    await();
  }

  EtcdSettings settings() const {
    EtcdSettings settings;
    settings.endpoint = {"127.0.0.1", client_.port()};
    return settings;
  }
  std::string endpoint() const { return "127.0.0.1:" + port_text(client_); }

  /// Of the job's coordinator.
  int coordinators_port(const std::string& job) const {
    const EtcdAnswer answer = call_etcd(settings(), job, {}, "");
    REQUIRE(answer.coordinator);
    return decode_place(answer.coordinator->value).value().endpoint.port;
  }

  void run_etcdctl(const std::string& command) const {
    REQUIRE(std::system(("ETCDCTL_API=3 etcdctl --endpoints=" + endpoint() +
                         " " + command + " >/dev/null 2>&1")
                            .c_str()) == 0);
  }

 private:
  static std::string port_text(const PortReservation& port) {
    return std::to_string(port.port());
  }
  void await() const {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (call_etcd(settings(), "nobody's", {}, "").outcome !=
           EtcdAnswer::Outcome::done) {
      if (std::chrono::steady_clock::now() > end) {
        FAIL("etcd does not answer after 20 s");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  PortReservation client_{0};
  PortReservation peer_{0};
  ddp::test::TemporaryFolder folder_;
  pid_t pid_ = -1;
};

Arguments host_of(const std::string& endpoint,
                  const std::string& hosts,
                  const std::string& job,
                  const Arguments& program,
                  const std::string& settings = "") {
  Arguments all{"--nnodes=" + hosts,
                "--rdzv-backend=etcd-v2",
                "--rdzv-id=" + job,
                "--rdzv-endpoint=" + endpoint,
                "--rdzv-conf=last_call_timeout=0.2" + settings};
  all.insert(all.end(), program.begin(), program.end());
  return all;
}

std::unique_ptr<Ddprun> start_host(const Arguments& arguments) {
  return std::make_unique<Ddprun>(
      arguments, std::map<std::string, std::string>{{"DDPRUN_TOKEN", "x"}});
}

/// The ddprun that listens at a port of this machine.
pid_t holder_of(int port) {
  const std::string text = port_holder(port);
  const size_t at = text.find("(pid ");
  REQUIRE(at != std::string::npos);
  return std::atoi(text.c_str() + at + 5);
}

/// Shows its world, and ends when it is one of `size`.
Arguments worker_until(const std::string& size) {
  return {"sh",
          "-c",
          "echo in a world of $WORLD_SIZE; [ $WORLD_SIZE = " + size +
              " ] || exec sleep 60"};
}

}  // namespace

TEST_CASE("etcd: hosts meet, also when it is killed and started again") {
  if (!is_etcd_there()) {
    return;
  }
  EtcdServer etcd;
  const Arguments program{
      "sh", "-c", "echo rank $RANK of $WORLD_SIZE; read end; exit 0"};
  const auto start = [&](const std::string& job) {
    return start_host(host_of(etcd.endpoint(), "2", job, program));
  };
  // Two jobs at one etcd, at once.
  const std::unique_ptr<Ddprun> hosts[] = {
      start("a"), start("b"), start("a"), start("b")};
  for (const auto& host : hosts) {
    host->await_out(" of 2\n");
  }
  etcd.kill();
  etcd.start();
  std::map<std::string, int> ranks;
  for (const auto& host : hosts) {
    host->close_input();
  }
  for (const auto& host : hosts) {
    const Result result = host->finish();
    CAPTURE(result.err);
    CHECK(result.code() == 0);
    CHECK(!result.left_something);
    ++ranks[result.out];
  }
  CHECK(ranks.size() == 2);
  CHECK(ranks.begin()->second == 2);
}

TEST_CASE("etcd: the job goes on when its coordinator's host is lost") {
  if (!is_etcd_there()) {
    return;
  }
  EtcdServer etcd;
  Arguments arguments =
      host_of(etcd.endpoint(), "1:3", "job", worker_until("2"));
  arguments.insert(arguments.begin(), "--start-when=3");
  const std::unique_ptr<Ddprun> hosts[] = {
      start_host(arguments), start_host(arguments), start_host(arguments)};
  for (const auto& host : hosts) {
    host->await_out("in a world of 3\n");
  }
  // etcd is away for a while, which nobody notices.
  etcd.kill();
  etcd.start();
  ::kill(holder_of(etcd.coordinators_port("job")), SIGKILL);
  int survivors = 0;
  for (const auto& host : hosts) {
    const Result result = host->finish();
    CAPTURE(result.out, result.err);
    if (result.code() != 128 + SIGKILL) {
      ++survivors;
      CHECK(result.code() == 0);
      CHECK_THAT(result.out, Contains("in a world of 2"));
      CHECK_THAT(result.err, Contains("vanished"));
      CHECK(!result.left_something);
    }
  }
  CHECK(survivors == 2);
}

TEST_CASE("etcd: one line where it cannot be reached or does not let us in") {
  if (!is_etcd_there()) {
    return;
  }
  const auto error_of = [](const std::string& endpoint,
                           const std::string& settings,
                           const std::map<std::string, std::string>& more) {
    std::map<std::string, std::string> variables = more;
    variables["DDPRUN_TOKEN"] = "x";
    const Result result = run_ddprun(
        host_of(endpoint, "2", "job", {"true"}, settings), variables);
    CAPTURE(result.err);
    CHECK(result.code() == 1);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    return result.err;
  };
  const PortReservation closed(0);
  CHECK_THAT(error_of("127.0.0.1:" + std::to_string(closed.port()),
                      ",join_timeout=0.2",
                      {}),
             Contains("has not answered") && Contains("check that etcd runs"));
  EtcdServer etcd;
  etcd.run_etcdctl("user add root:right");
  etcd.run_etcdctl("user grant-role root root");
  etcd.run_etcdctl("auth enable");
  CHECK_THAT(
      error_of(
          etcd.endpoint(),
          "",
          {{"DDPRUN_ETCD_USER", "root"}, {"DDPRUN_ETCD_PASSWORD", "wrong"}}),
      Contains("authentication failed") && Contains("check DDPRUN_ETCD_USER"));
  CHECK_THAT(error_of(etcd.endpoint(), ",protocol=https", {}),
             Contains("check protocol, ca_cert"));
  const auto join = [&] {
    return std::make_unique<Ddprun>(
        host_of(etcd.endpoint(), "2", "job", {"true"}),
        std::map<std::string, std::string>{{"DDPRUN_TOKEN", "x"},
                                           {"DDPRUN_ETCD_USER", "root"},
                                           {"DDPRUN_ETCD_PASSWORD", "right"}});
  };
  const std::unique_ptr<Ddprun> hosts[] = {join(), join()};
  for (const auto& host : hosts) {
    const Result result = host->finish();
    CAPTURE(result.err);
    CHECK(result.code() == 0);
  }
}
