// bench_etcd PORT JOB HOSTS: HOSTS hosts of one job, each a process, perform
// the rendezvous through the etcd at that port of the loopback interface. Then
// the coordinator's host is killed and another host joins: the hosts elect a
// new coordinator and form a new world.
//
// Prints the milliseconds until all hosts have their world, and until the next
// world; then, in KiB, the private memory of the coordinator's process and of
// another host's process in the first world.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/base/fd.h"
#include "launcher/hosts/make_rendezvous.h"
#include "test/launcher/etcd/ask_etcd.h"

using namespace launcher;

namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr std::chrono::seconds kBound{240};

Time now() {
  return std::chrono::steady_clock::now();
}

double ms_since(Time begin) {
  return std::chrono::duration<double, std::milli>(now() - begin).count();
}

EtcdConfig config_of(int port, const std::string& job, int hosts) {
  EtcdConfig config;
  config.etcd.endpoints = {{"127.0.0.1", port}};
  config.terms = {.run_id = job, .least_hosts = hosts - 1, .most_hosts = hosts};
  config.start_hosts = hosts;
  return config;
}

/// Writes a byte, the generation, for each world of this host, until the
/// process is killed.
[[noreturn]] void run_host(const EtcdConfig& config, int number, int news) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  EventLoop loop;
  std::unique_ptr<Rendezvous> rendezvous;
  rendezvous = make_etcd_rendezvous(
      loop,
      config,
      "host" + std::to_string(number),
      [&](const RendezvousAnswer& answer) {
        if (const auto* formed = std::get_if<WorldFormed>(&answer)) {
          const char generation = static_cast<char>(formed->world.generation);
          check(static_cast<int>(::write(news, &generation, 1)), "write");
        } else if (std::holds_alternative<WorldBroken>(answer)) {
          rendezvous->join({});
        } else if (const auto* lost = std::get_if<RendezvousLost>(&answer)) {
          throw std::runtime_error(lost->text);
        } else if (const auto* closed = std::get_if<JobClosed>(&answer)) {
          throw std::runtime_error(closed->text);
        }
      });
  try {
    rendezvous->join({});
    for (;;) {
      loop.run_once();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "host %d: %s\n", number, error.what());
    ::_exit(1);
  }
}

/// The processes of the hosts, which are killed at the end.
class Hosts {
 public:
  explicit Hosts(EtcdConfig config) : config_(std::move(config)) {}
  ~Hosts() {
    for (const pid_t pid : pids_) {
      kill(pid);
    }
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  void start_one() {
    const pid_t pid = check(::fork(), "fork");
    if (pid == 0) {
      news_.read.reset();
      run_host(config_, static_cast<int>(pids_.size()), news_.write.get());
    }
    pids_.push_back(pid);
  }
  /// Returns the private memory of the host that started as number `index`.
  double own_kib(size_t index) const {
    const std::string path =
        "/proc/" + std::to_string(pids_.at(index)) + "/smaps_rollup";
    std::ifstream file(path);
    double sum = 0;
    for (std::string line; std::getline(file, line);) {
      double kib = 0;
      if (std::sscanf(line.c_str(), "Private_Clean: %lf", &kib) == 1 ||
          std::sscanf(line.c_str(), "Private_Dirty: %lf", &kib) == 1) {
        sum += kib;
      }
    }
    if (sum == 0) {
      throw std::runtime_error("expected pages of a process in " + path);
    }
    return sum;
  }
  void kill_first() {
    kill(pids_.front());
    pids_.erase(pids_.begin());
  }
  void wait_for_coordinator() const {
    const Time begin = now();
    while (!launcher::test::ask_etcd(config_.etcd, config_.terms.run_id)
                .coordinator) {
      if (now() - begin > kBound) {
        throw std::runtime_error("expected a coordinator within 240 s");
      }
    }
  }
  void wait_for_world(char generation) const {
    for (int count = 0; count < config_.terms.most_hosts;) {
      pollfd news{news_.read.get(), POLLIN, 0};
      char found = 0;
      if (::poll(&news, 1, kBound / std::chrono::milliseconds(1)) != 1 ||
          ::read(news.fd, &found, 1) != 1) {
        throw std::runtime_error("expected a world of all within 240 s");
      }
      count += found == generation ? 1 : 0;
    }
  }

 private:
  static void kill(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }

  EtcdConfig config_;
  Pipe news_ = make_pipe();
  std::vector<pid_t> pids_;
};

void measure(int port, const std::string& job, int count) {
  Hosts hosts(config_of(port, job, count));
  Time begin = now();
  hosts.start_one();
  hosts.wait_for_coordinator();
  for (int number = 1; number < count; ++number) {
    hosts.start_one();
  }
  hosts.wait_for_world(0);
  const double form_ms = ms_since(begin);
  const double coordinator_kib = hosts.own_kib(0);
  const double host_kib = hosts.own_kib(1);
  begin = now();
  hosts.kill_first();
  hosts.start_one();
  hosts.wait_for_world(1);
  const double next_ms = ms_since(begin);
  std::printf("%g %g %g %g\n", form_ms, next_ms, coordinator_kib, host_kib);
}

}  // namespace

int main(int argc, char** argv) {
  const int hosts = argc == 4 ? std::atoi(argv[3]) : 0;
  if (hosts < 2) {
    std::fprintf(stderr, "usage: bench_etcd PORT JOB HOSTS, at least 2\n");
    return 2;
  }
  try {
    measure(std::atoi(argv[1]), argv[2], hosts);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_etcd: %s\n", error.what());
    return 1;
  }
}
