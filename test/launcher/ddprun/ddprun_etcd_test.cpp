#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "launcher/doctor/port_holder.h"
#include "launcher/hosts/etcd/job_state.h"
#include "launcher/net/port.h"
#include "test/launcher/ddprun/etcd_server.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/launcher/etcd/ask_etcd.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;
using Arguments = Ddprun::Arguments;

// Hosts that meet through an etcd that the test starts, over loopback.
namespace {

std::unique_ptr<Ddprun> start_host(const Arguments& arguments) {
  // Allows for the expiry of a lease.
  return std::make_unique<Ddprun>(
      arguments,
      std::map<std::string, std::string>{{"DDPRUN_TOKEN", "x"}},
      "",
      std::chrono::seconds(60));
}

/// Returns the process id of the ddprun that listens at a port of this machine.
pid_t holder_of(int port) {
  const std::string text = port_holder(port);
  const size_t at = text.find("(pid ");
  REQUIRE(at != std::string::npos);
  return std::atoi(text.c_str() + at + 5);
}

using Hosts = std::vector<std::unique_ptr<Ddprun>>;

/// Three hosts of a job that goes on with two and then ends.
class ThreeHosts {
 public:
  /// Returns after the workers of all three have begun.
  explicit ThreeHosts(const std::string& endpoints) {
    // On a slow machine two hosts may form the first world. So a world of two
    // ends the job only after a world of three.
    const Arguments worker{
        "sh",
        "-c",
        "echo in a world of $WORLD_SIZE; "
        "[ $WORLD_SIZE = 2 ] && [ -e \"$0\" ] || exec sleep 60",
        all_were_there_};
    Arguments arguments =
        etcd_host_of(endpoints, "1:3", "job", worker, ",keep_alive_interval=1");
    // Shortens the lease of a coordinator that is killed.
    arguments.insert(arguments.begin(), {"--start-when=3", "--grace-period=1"});
    for (int i = 0; i < 3; ++i) {
      hosts_.push_back(start_host(arguments));
    }
    for (const auto& host : hosts_) {
      host->await_out("in a world of 3\n");
    }
    std::ofstream(all_were_there_).put('\n');
  }

  const Hosts& hosts() const { return hosts_; }

 private:
  ddp::test::TemporaryFolder folder_;
  const std::string all_were_there_ = folder_ / "all were there";
  Hosts hosts_;
};

/// Returns the results of the two hosts that were not killed, and checks them.
std::vector<Result> two_survivors_of(const Hosts& hosts) {
  std::vector<Result> survivors;
  for (const auto& host : hosts) {
    Result result = host->finish();
    CAPTURE(result.out, result.err);
    if (result.code() != 128 + SIGKILL) {
      CHECK(result.code() == 0);
      CHECK_THAT(result.out, Contains("in a world of 2"));
      survivors.push_back(std::move(result));
    }
  }
  CHECK(survivors.size() == 2);
  return survivors;
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
    return start_host(etcd_host_of(etcd.endpoint(), "2", job, program));
  };
  // Two jobs use one etcd at the same time.
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
  const ThreeHosts three(etcd.endpoint());
  // A short outage of etcd has no effect.
  etcd.kill();
  etcd.start();
  ::kill(holder_of(etcd.coordinators_port("job")), SIGKILL);
  for (const Result& result : two_survivors_of(three.hosts())) {
    CHECK_THAT(result.err, Contains("vanished"));
    CHECK(!result.left_something);
  }
}

TEST_CASE(
    "etcd: workers stop while it is away for longer than the lease lets") {
  if (!is_etcd_there()) {
    return;
  }
  EtcdServer etcd;
  Arguments arguments = etcd_host_of(
      etcd.endpoint(),
      "1:2",
      "job",
      {"sh",
       "-c",
       "trap 'echo stopped; exit 1' TERM; echo up; read end; exit 0"},
      ",keep_alive_interval=0.2,lease_timeout=4");
  arguments.insert(arguments.begin(), "--grace-period=1");
  const auto host = start_host(arguments);
  host->await_out("up\n");
  etcd.kill();
  host->await_out("stopped\n");
  etcd.start();
  host->await_out("up\n", 2);
  host->close_input();
  const Result result = host->finish();
  CAPTURE(result.out, result.err);
  CHECK(result.code() == 0);
  CHECK_THAT(result.err, Contains("the workers stop until it does"));
}

TEST_CASE("etcd: a coordinator keeps its place until its workers have ended") {
  if (!is_etcd_there()) {
    return;
  }
  EtcdServer etcd;
  const ddp::test::TemporaryFolder folder;
  const std::string file = folder / "order";
  const auto start = [&](const std::string& program) {
    return start_host(
        etcd_host_of(etcd.endpoint(), "1:2", "job", {"sh", "-c", program}));
  };
  const auto old =
      start("trap 'echo stopping; read end; echo ended >> " + file +
            "; exit 1' TERM; echo up; while :; do sleep 0.1; done");
  old->await_out("up\n");
  old->signal(SIGTERM);
  old->await_out("stopping\n");
  const auto next = start("echo up >> " + file);
  next->await_err("or for the end of its lease");
  old->close_input();
  old->finish();
  const Result result = next->finish();
  CAPTURE(result.err);
  CHECK(result.code() == 0);
  CHECK(ddp::test::read_file(file) == "ended\nup\n");
}

TEST_CASE("etcd: a lease in which no group could end is refused") {
  const Result result = run_ddprun(
      etcd_host_of("127.0.0.1:1", "2", "job", {"true"}, ",lease_timeout=59"));
  CHECK(result.code() == 2);
  CHECK_THAT(result.err,
             Contains("expected lease_timeout of at least 60 s") &&
                 Contains("but got 59 s"));
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
        etcd_host_of(endpoint, "2", "job", {"true"}, settings), variables);
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
        etcd_host_of(etcd.endpoint(), "2", "job", {"true"}),
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

TEST_CASE("etcd: without libcurl one line says which package to install") {
  const ddp::test::TemporaryFolder folder;
  for (const char* name :
       {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"}) {
    ddp::test::write_file(folder / name, "");
  }
  const Result result =
      run_ddprun(etcd_host_of("127.0.0.1:1", "2", "job", {"true"}),
                 {{"DDPRUN_TOKEN", "x"}, {"LD_LIBRARY_PATH", folder.path()}});
  CAPTURE(result.err);
  CHECK(result.code() == 1);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK_THAT(result.err,
             Contains("cannot load libcurl (") &&
                 Contains("apt-get install libcurl4"));
}

TEST_CASE("etcd: doctors meet, and leave no coordinator in etcd") {
  if (!is_etcd_there()) {
    return;
  }
  EtcdServer etcd;
  // Skips the all-reduce of each host, which other tests cover.
  const ddp::test::TemporaryFolder folder;
  ddp::test::write_file(folder / "libc10.so", "");
  const auto start = [&] {
    return std::make_unique<Ddprun>(
        etcd_host_of(
            etcd.endpoint(), "2", "job", {"--doctor", "--nproc-per-node=1"}),
        std::map<std::string, std::string>{{"DDPRUN_TOKEN", "x"},
                                           {"LD_LIBRARY_PATH", folder.path()}});
  };
  const std::unique_ptr<Ddprun> hosts[] = {start(), start()};
  std::string all;
  for (const auto& host : hosts) {
    const Result result = host->finish();
    CAPTURE(result.out, result.err);
    CHECK_THAT(result.out,
               Contains("ok       hosts: 2 of 2 met at etcd at 127.0.0.1:") &&
                   !Contains("error    port"));
    CHECK(!result.left_something);
    all += result.out;
  }
  CHECK_THAT(all, Contains("ok       ways: 2 of 2 between the hosts connect"));
  CHECK_THAT(all, Contains("ok       ways: 1 of 1 from "));
  CHECK(!ask_etcd(etcd.settings(), "job-doctor").coordinator);
}

TEST_CASE("etcd: another member is asked where one does not answer") {
  if (!is_etcd_there()) {
    return;
  }
  const PortReservation closed(0);
  const auto members = EtcdServer::cluster(3);
  std::string endpoints = "127.0.0.1:" + std::to_string(closed.port());
  for (const auto& member : members) {
    endpoints += "," + member->endpoint();
  }
  const ThreeHosts three(endpoints);
  const int port = members.back()->coordinators_port("job");
  members.front()->kill();  // all members have found this one
  ::kill(holder_of(port), SIGKILL);
  two_survivors_of(three.hosts());
}

TEST_CASE("etcd: stopped while a job ends, it hears of the end") {
  if (!is_etcd_there()) {
    return;
  }
  EtcdServer etcd;
  Arguments all =
      etcd_host_of(etcd.endpoint(),
                   "2",
                   "job",
                   {"sh", "-c", "echo begins; read end; echo ends"});
  all.insert(all.begin(), "--health-check=true");
  const std::unique_ptr<Ddprun> hosts[] = {start_host(all), start_host(all)};
  for (const auto& host : hosts) {
    host->await_out("begins\n");
  }
  const auto is_closed = [&] {
    const auto entry = ask_etcd(etcd.settings(), "job").record;
    return decode_job_state(entry.value().value).value().closed.has_value();
  };
  REQUIRE(!is_closed());
  etcd.stop();
  for (const auto& host : hosts) {
    host->close_input();
    host->await_out("ends\n");
  }
  etcd.go_on();
  for (const auto& host : hosts) {
    const Result result = host->finish();
    CAPTURE(result.err);
    CHECK(result.code() == 0);
  }
  CHECK(is_closed());
}

TEST_CASE("etcd: lost for good, a job still ends, and cannot start again") {
  if (!is_etcd_there()) {
    return;
  }
  EtcdServer etcd;
  const auto start = [&](const std::string& job,
                         const std::string& program,
                         const std::string& restarts) {
    Arguments all = etcd_host_of(
        etcd.endpoint(),
        "2",
        job,
        {"sh", "-c", "echo rank $RANK of $WORLD_SIZE; read end; " + program},
        ",join_timeout=3");  // long enough for two hosts to meet
    all.insert(all.begin(), "--max-restarts=" + restarts);
    return start_host(all);
  };
  const std::unique_ptr<Ddprun> ends[] = {start("a", "exit 0", "1"),
                                          start("a", "exit 0", "1")};
  const std::unique_ptr<Ddprun> fails[] = {start("b", "exit 3", "1"),
                                           start("b", "exit 3", "1")};
  const std::unique_ptr<Ddprun> is_over[] = {start("c", "exit 3", "0"),
                                             start("c", "exit 3", "0")};
  const auto all_of = [](const auto& hosts, const auto& act) {
    for (const auto& host : hosts) {
      act(*host);
    }
  };
  const auto await_world = [](Ddprun& host) { host.await_out(" of 2\n"); };
  const auto go_on = [](Ddprun& host) { host.close_input(); };
  all_of(ends, await_world);
  all_of(fails, await_world);
  all_of(is_over, await_world);
  etcd.kill();
  all_of(ends, go_on);
  all_of(fails, go_on);
  all_of(is_over, go_on);
  all_of(ends, [](Ddprun& host) {
    const Result result = host.finish();
    CAPTURE(result.err);
    CHECK(result.code() == 0);
  });
  all_of(fails, [](Ddprun& host) {
    const Result result = host.finish();
    CAPTURE(result.err);
    CHECK(result.code() == 1);
    CHECK_THAT(result.err, Contains("has not answered for"));
    CHECK(!result.left_something);
  });
  // The error names the end of the job, and not the lost connection to etcd.
  all_of(is_over, [](Ddprun& host) {
    const Result result = host.finish();
    CAPTURE(result.err);
    CHECK(result.code() == 3);
    CHECK_THAT(result.err,
               Contains("exit code 3") && !Contains("has not answered"));
  });
}
