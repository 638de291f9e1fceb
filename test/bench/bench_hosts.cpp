// bench_hosts HOSTS: HOSTS hosts of one job perform the rendezvous over the
// loopback interface. The coordinator has a process of its own, as the ddprun
// of the endpoint's host; all other hosts are members in this process. Then one
// of them leaves and another one joins, and they form a new world.
//
// Prints a line of numbers: milliseconds until all have their world; the
// coordinator's CPU milliseconds; messages and bytes per host; KiB of memory
// that the coordinator uses; milliseconds and CPU milliseconds until the next
// world.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "launcher/base/overloaded.h"
#include "launcher/base/text_file.h"
#include "launcher/hosts/make_rendezvous.h"
#include "launcher/hosts/member/coordinator_connection.h"
#include "launcher/hosts/member/rendezvous_client.h"
#include "launcher/net/port.h"

using namespace launcher;

namespace {

using Time = RendezvousClient::Time;

Time now() {
  return std::chrono::steady_clock::now();
}

double ms_since(Time begin) {
  return std::chrono::duration<double, std::milli>(now() - begin).count();
}

struct Traffic {
  int64_t messages = 0;
  int64_t bytes = 0;

  void count(const Message& message) {
    ++messages;
    bytes += static_cast<int64_t>(encode(message).size());
  }
};

CoordinatedConfig config_of(int hosts, int port) {
  CoordinatedConfig config;
  config.coordinator.endpoint = {"127.0.0.1", port};
  config.terms = {.run_id = "bench",
                  .least_hosts = hosts,
                  .most_hosts = hosts,
                  .max_restarts = 1};
  config.coordinator.is_here = true;
  return config;
}

/// Joins every world until the process is killed.
///
/// @param ready  closed when other hosts can connect
[[noreturn]] void coordinate(const CoordinatedConfig& config, Fd ready) {
  EventLoop loop;
  std::unique_ptr<Rendezvous> rendezvous;
  rendezvous = make_rendezvous(
      loop, config, "host0", [&](const RendezvousAnswer& answer) {
        if (std::holds_alternative<WorldBroken>(answer)) {
          rendezvous->join({});
        }
      });
  rendezvous->join({});
  ready.reset();
  for (;;) {
    loop.run_once();
  }
}

/// The rendezvous part of another host's ddprun. All guests share an event
/// loop, which is designed for few timers, so on_time() is called from outside.
class Guest {
 public:
  Guest(EventLoop& loop,
        const CoordinatedConfig& config,
        int number,
        Traffic& traffic)
      : traffic_(traffic),
        client_({.hello = hello_of(config, "host" + std::to_string(number), {}),
                 .endpoint = "the coordinator",
                 .timeouts = config.timeouts}),
        connection_(loop,
                    {.on_open =
                         [this](const std::string& address) {
                           perform(client_.on_connected(address, now()));
                         },
                     .on_message =
                         [this](const Message& message) {
                           traffic_.count(message);
                           perform(client_.on_message(message, now()));
                         },
                     .on_lost =
                         [this](const std::string& how, bool is_gone) {
                           perform(client_.on_closed(now(), how, is_gone));
                         }}) {
    connection_.use(addresses_of(config.coordinator.endpoint.host,
                                 config.coordinator.endpoint.port));
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  void join() { perform(client_.join(29500, now())); }
  void leave() { perform(client_.leave()); }
  void on_time() {
    if (client_.next_deadline().value_or(Time::max()) <= now()) {
      perform(client_.on_time(now()));
    }
  }
  int generation() const { return generation_; }

 private:
  void perform(const RendezvousClient::Actions& actions) {
    for (const RendezvousClient::Action& action : actions) {
      std::visit(
          Overloaded{[this](const RendezvousClient::Connect&) {
                       connection_.disconnect();
                       connection_.connect();
                     },
                     [this](const RendezvousClient::Disconnect&) {
                       connection_.disconnect();
                     },
                     [this](const Message& message) {
                       traffic_.count(message);
                       connection_.send(message);
                     },
                     [this](const RendezvousAnswer& answer) { take(answer); }},
          action);
    }
  }

  void take(const RendezvousAnswer& answer) {
    if (const auto* formed = std::get_if<WorldFormed>(&answer)) {
      generation_ = formed->world.generation;
    } else if (std::holds_alternative<WorldBroken>(answer)) {
      join();
    } else if (const auto* lost = std::get_if<RendezvousLost>(&answer)) {
      throw std::runtime_error(lost->text);
    }
  }

  Traffic& traffic_;
  RendezvousClient client_;
  CoordinatorConnection connection_;
  int generation_ = -1;
};

/// The process of the coordinator.
class Coordination {
 public:
  explicit Coordination(const CoordinatedConfig& config) {
    Pipe ready = make_pipe();
    pid_ = check(::fork(), "fork");
    if (pid_ == 0) {
      ready.read.reset();
      coordinate(config, std::move(ready.write));
    }
    ready.write.reset();
    char byte = 0;
    check(static_cast<int>(::read(ready.read.get(), &byte, 1)), "read");
  }
  ~Coordination() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Coordination(const Coordination&) = delete;
  Coordination& operator=(const Coordination&) = delete;

  double cpu_ms() const {
    clockid_t clock = 0;
    timespec time{};
    ::clock_getcpuclockid(pid_, &clock);
    ::clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) * 1e3 +
           static_cast<double>(time.tv_nsec) / 1e6;
  }
  int64_t kib() const {
    const std::string text =
        read_text("/proc/" + std::to_string(pid_) + "/status");
    return std::atoll(text.c_str() + text.find("RssAnon:") + 8);
  }

 private:
  pid_t pid_ = -1;
};

void allow_all_descriptors() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

void run_until_all_are_in(EventLoop& loop,
                          const std::vector<std::unique_ptr<Guest>>& guests,
                          int generation) {
  constexpr std::chrono::seconds kBound{120};
  const Time begin = now();
  const std::function<void()> tick = [&] {
    for (const auto& guest : guests) {
      guest->on_time();
    }
    loop.arm_timer("tick", std::chrono::milliseconds(100), tick);
  };
  tick();
  for (const auto& guest : guests) {
    while (guest->generation() < generation) {
      loop.run_once();
      if (now() - begin >= kBound) {
        throw std::runtime_error("expected a world of all within 120 s");
      }
    }
  }
  loop.disarm_timer("tick");
}

void measure(int hosts) {
  const PortReservation port(0);
  const CoordinatedConfig config = config_of(hosts, port.port());
  const Coordination coordination(config);
  EventLoop loop;
  Traffic traffic;
  std::vector<std::unique_ptr<Guest>> guests;
  for (int number = 1; number < hosts; ++number) {
    guests.push_back(std::make_unique<Guest>(loop, config, number, traffic));
  }
  const int64_t kib_before = coordination.kib();
  const double cpu_before = coordination.cpu_ms();
  Time begin = now();
  for (const auto& guest : guests) {
    guest->join();
  }
  run_until_all_are_in(loop, guests, 0);
  const double form_ms = ms_since(begin);
  const double form_cpu = coordination.cpu_ms() - cpu_before;
  const Traffic met = traffic;
  begin = now();
  guests.back()->leave();
  const auto left = std::move(guests.back());
  guests.back() = std::make_unique<Guest>(loop, config, hosts, traffic);
  guests.back()->join();
  run_until_all_are_in(loop, guests, 1);
  const double again_ms = ms_since(begin);
  const double again_cpu = coordination.cpu_ms() - cpu_before - form_cpu;
  std::printf("%g %g %g %g %lld %g %g\n",
              form_ms,
              form_cpu,
              static_cast<double>(met.messages) / (hosts - 1),
              static_cast<double>(met.bytes) / (hosts - 1),
              static_cast<long long>(coordination.kib() - kib_before),
              again_ms,
              again_cpu);
}

}  // namespace

int main(int argc, char** argv) {
  const int hosts = argc == 2 ? std::atoi(argv[1]) : 0;
  if (hosts < 3) {
    std::fprintf(stderr, "usage: bench_hosts HOSTS, at least 3\n");
    return 2;
  }
  allow_all_descriptors();
  try {
    measure(hosts);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_hosts: %s\n", error.what());
    return 1;
  }
}
