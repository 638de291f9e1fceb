#include "launcher/host.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>

#include "launcher/error.h"
#include "launcher/output/run_directory.h"
#include "launcher/process/cgroup_path.h"
#include "launcher/process/signal_names.h"
#include "launcher/rendezvous/host_name.h"
#include "launcher/rendezvous/port.h"
#include "launcher/rendezvous/rendezvous.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;

namespace {

/// A socket as a server's: reusable address, bound, not listening yet.
Fd bind_to(int port, int reuse = 1) {
  Fd result(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ::setsockopt(result.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<in_port_t>(port));
  if (::bind(result.get(),
             reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) != 0) {
    result.reset();
  }
  return result;
}

int port_of(const Fd& bound) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  REQUIRE(::getsockname(
              bound.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

}  // namespace

TEST_CASE("this machine has a name and CPUs") {
  const auto host = probe_host();
  CHECK(!host.name.empty());
  CHECK(host.cpu_count >= 1);
  CHECK(host.gpu_count >= 0);
}

TEST_CASE("CPU quotas round up") {
  CHECK(cpus_of_quota("max 100000\n", 8) == 8);
  CHECK(cpus_of_quota("200000 100000\n", 8) == 2);
  CHECK(cpus_of_quota("250000 100000", 8) == 3);
  CHECK(cpus_of_quota("1000 100000", 8) == 1);
  CHECK(cpus_of_quota("-1\n 100000", 8) == 8);
  CHECK(cpus_of_quota("", 8) == 8);
}

TEST_CASE("GPU device files") {
  CHECK(is_gpu_device("nvidia0"));
  CHECK(is_gpu_device("nvidia15"));
  for (const char* name :
       {"nvidia", "nvidiactl", "nvidia-uvm", "nvidia0x", "xnvidia0", "null"}) {
    CHECK(!is_gpu_device(name));
  }
}

TEST_CASE("the cgroup's folder on hybrid, unified and container hosts") {
  const std::string unified =
      "24 23 0:22 / /proc rw - proc proc rw\n"
      "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
  CHECK(cgroup_folder(unified, "0::/user.slice/a.scope\n") ==
        "/sys/fs/cgroup/user.slice/a.scope");
  CHECK(cgroup_folder(unified, "0::/\n") == "/sys/fs/cgroup");
  const std::string hybrid =
      "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
      "32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  CHECK(cgroup_folder(hybrid, "2:cpu:/x\n0::/y\n") ==
        "/sys/fs/cgroup/unified/y");
  const std::string part =
      "32 23 0:28 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
  CHECK(cgroup_folder(part, "0::/docker/1/b\n") == "/sys/fs/cgroup/b");
  CHECK(!cgroup_folder(part, "0::/elsewhere\n"));
  CHECK(!cgroup_folder(unified, "0::/../other\n"));
  CHECK(!cgroup_folder("", "0::/y\n"));
  CHECK(!cgroup_folder(hybrid, "2:cpu:/x\n"));
}

TEST_CASE("names of signals") {
  CHECK(signal_name(SIGTERM) == "SIGTERM");
  CHECK(signal_name(50) == "signal 50");
  CHECK(signal_number("SIGUSR2") == SIGUSR2);
  CHECK(signal_number("INT") == SIGINT);
  CHECK(signal_number("SIGNOTHING") == 0);
}

TEST_CASE("a reserved port goes to a store and to nobody else") {
  const PortReservation reservation(0);
  std::vector<Fd> others;
  for (int count = 0; count < 500; ++count) {
    others.push_back(bind_to(0));
    REQUIRE(others.back());
    CHECK(port_of(others.back()) != reservation.port());
  }
  CHECK(!bind_to(reservation.port(), /*reuse=*/0));
  const Fd store = bind_to(reservation.port());
  REQUIRE(store);
  CHECK(::listen(store.get(), 1) == 0);
  // Now that somebody listens there, it is in use.
  CHECK_THROWS_WITH(
      PortReservation(reservation.port()),
      Contains("port " + std::to_string(reservation.port()) + " is in use") &&
          Contains("--master-port"));
}

TEST_CASE("a local rendezvous has a fresh port each time") {
  const auto rendezvous = make_local_rendezvous("127.0.0.1");
  const auto first = rendezvous->next();
  const auto second = rendezvous->next();
  CHECK(first.host == "127.0.0.1");
  CHECK(first.port > 0);
  CHECK(second.port != first.port);
}

TEST_CASE("a static rendezvous checks the port on its own host only") {
  const Fd listener = bind_to(0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  const Endpoint taken{"host0", port_of(listener)};
  CHECK_THROWS_AS(make_static_rendezvous(taken, 0)->next(), LaunchError);
  CHECK(make_static_rendezvous(taken, 1)->next().port == taken.port);
}

TEST_CASE("host names that do not resolve are an error now") {
  CHECK_NOTHROW(require_resolvable("127.0.0.1"));
  CHECK_NOTHROW(require_resolvable("::1"));
  CHECK_NOTHROW(require_resolvable("localhost"));
  CHECK_THROWS_WITH(require_resolvable("no-such-host.invalid"),
                    Contains("host name no-such-host.invalid cannot be "
                             "resolved") &&
                        Contains("--master-addr"));
}

TEST_CASE("a run's folder has torchrun's layout") {
  Job job;
  job.run_id = "job7";
  CHECK(run_directory_pattern(job) == "/tmp/ddprun_XXXXXX");
  job.environment["TMPDIR"] = "/var/tmp";
  CHECK(run_directory_pattern(job) == "/var/tmp/ddprun_XXXXXX");
  job.options.log_dir = "/logs";
  CHECK(run_directory_pattern(job) == "/logs/job7_XXXXXX");
  job.options.log_dir = "/dev/null";
  CHECK(run_directory_pattern(job) == "/var/tmp/ddprun_XXXXXX");
  job.options.log_dir = "/logs";
  job.run_id = "../job7";
  CHECK_THROWS_WITH(run_directory_pattern(job), Contains("--rdzv-id"));
}
