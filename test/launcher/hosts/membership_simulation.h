#pragma once

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "launcher/hosts/coordinator/coordinator.h"
#include "launcher/hosts/member/rendezvous_client.h"
#include "test/launcher/hosts/membership_oracle.h"

namespace launcher::test {

using namespace std::chrono_literals;

/// Simulates a coordinator and hosts in memory. The network loses, delays,
/// duplicates and reorders messages, clocks jump, and hosts die, leave and
/// join. One seed determines one schedule.
class MembershipSimulation {
 public:
  explicit MembershipSimulation(uint64_t seed);

  /// @throws std::runtime_error if an invariant is violated
  void run();

 private:
  using Time = Coordinator::Time;
  using Duration = std::chrono::milliseconds;
  using Connection = Coordinator::Connection;

  // Connection of host 0, which runs the coordinator.
  static constexpr Connection kOwn = 0;

  // From this time on no message is lost, and no host dies.
  static constexpr Duration kCalm = 6s;
  static constexpr Duration kEnd = 120s;
  static constexpr int kMostEvents = 20'000;

  static RendezvousTimeouts short_timeouts();

  enum class Kind {
    start,  // a host's ddprun
    to_coordinator,
    to_host,
    opened,        // a connection, at the host
    closed_there,  // at the coordinator
    closed_here,   // at the host
    workers_end,
    workers_gone,
    trouble,
    coordinator_gone
  };
  struct Happening {
    Duration at{0};
    Kind kind{};
    size_t host = 0;
    Connection connection = 0;
    int attempt = 0;
    Message message{Noted{}};
    int64_t order = 0;
  };
  struct Later {
    bool operator()(const Happening& left, const Happening& right) const {
      return std::pair(left.at, left.order) > std::pair(right.at, right.order);
    }
  };
  struct Host {
    std::optional<RendezvousClient> member;
    std::string id;
    int workers = 1;
    Duration clock{0};  // its lead over real time
    std::optional<Connection> link;
    int generation = -1;
    int restarts = 0;
    int attempt = 0;
    bool is_working = false;
    bool has_failed = false;
    bool waits_for_end = false;  // of the job, after its last failure
    bool is_over = false;
  };

  [[noreturn]] static void fail(const std::string& what);
  static void require(bool truth, const char* what);

  int between(int least, int most);
  bool one_in(int count) { return between(1, count) == 1; }
  Duration up_to(Duration most);
  bool is_calm() const { return elapsed_ >= kCalm; }
  Time time() const { return Time() + 1h + elapsed_; }
  Time coordinator_time() const { return time() + coordinator_clock_; }
  Time time_of(const Host& host) const { return time() + host.clock; }

  void add(Happening happening);
  void add_later(Duration delay, Happening happening);
  /// Handles the next event or timer. Returns false if there is none.
  bool step();
  void handle(const Happening& event);
  void make_trouble();

  void start_host(Duration at);
  /// Ends a host's ddprun.
  void end(size_t index);
  void end_coordinator();
  void end_workers(size_t index);
  void stop_workers(size_t index);
  bool starts_no_more(const Host& host) const;
  void go_on(size_t index);
  size_t index_of(const Host& host) const;
  /// Returns the rank of a static host. A restarted host has the rank of an
  /// earlier one.
  int fixed_rank(size_t index) const {
    return static_cast<int>(index) % terms_.most_hosts;
  }

  void perform(Host& host, const RendezvousClient::Actions& actions);
  void perform(const Coordinator::Actions& actions);
  void connect(size_t index);
  void disconnect(size_t index);
  void close_ends(size_t index, bool here, bool there);
  void send(Kind kind,
            size_t index,
            Connection connection,
            const Message& message);
  void take(size_t index, const WorldFormed& formed);
  void take(size_t index, const WorldBroken&);
  void take(size_t index, const JobClosed& closed);
  void take(size_t index, const RendezvousLost&) { end(index); }
  static void take(size_t, const RendezvousNote&) {}

  std::mt19937_64 random_;
  JobTerms terms_{.run_id = "job"};
  std::optional<Coordinator> coordinator_;
  Duration coordinator_clock_{0};
  std::vector<Host> hosts_;
  std::map<Connection, size_t> guests_;
  std::set<Connection> silent_;
  std::optional<MembershipOracle> oracle_;
  std::vector<Happening> queue_;
  Duration elapsed_{0};
  int64_t order_ = 0;
  Connection last_connection_ = kOwn;
  int next_port_ = 1;
};

}  // namespace launcher::test
