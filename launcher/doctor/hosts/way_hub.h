#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/coordinator/admission.h"
#include "launcher/doctor/hosts/hosts_facts.h"
#include "launcher/doctor/hosts/way_messages.h"

namespace launcher {

/// Gathers the doctors of a job's hosts and tells them whom to connect to.
/// Pure: it has no sockets and no clock.
///
/// In round 0 every host connects to every other one, all at the same time. In
/// round r each sends more to the r-th host after it, so that no host has two
/// senders: N - 1 rounds measure all ways of N hosts. A host that does not
/// answer in time is let go, and the others go on.
class WayHub {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Connection = uint64_t;
  static constexpr Connection kOwn = 0;  ///< of this process with itself

  struct Options {
    Admission admission;
    std::chrono::milliseconds wait{120'000};  ///< for hosts
    /// for more hosts, once there are enough
    std::chrono::milliseconds last_call{30'000};
  };

  struct Send {
    Connection to;
    WayMessage message;
  };
  struct Drop {
    Connection connection;
  };
  using Action = std::variant<Send, Drop>;
  using Actions = std::vector<Action>;

  WayHub(Options options, Time now);

  /// @param here this host's end of that connection
  Actions on_message(Connection from,
                     const std::string& here,
                     const WayMessage& message,
                     Time now);
  Actions on_closed(Connection from, Time now);
  Actions on_time(Time now);

  Time next_deadline() const { return deadline_; }
  bool is_done() const { return phase_ == Phase::done; }
  bool is_gathering() const { return phase_ == Phase::gathering; }
  HostsFacts facts() const;

  /// Each round ends within it, whoever is silent.
  static constexpr std::chrono::seconds kRoundTime{10};
  /// No round starts after it.
  static constexpr std::chrono::seconds kMeasuringTime{60};

 private:
  enum class Phase { gathering, rounds, done };

  struct Guest {
    WayHello hello;
    std::string here;
    int64_t arrival = 0;
    int number = -1;  // in facts_, once all are here
  };

  Actions take(Connection from,
               const std::string& here,
               const WayHello& hello,
               Time now);
  void take(Connection from, const WayResults& results);
  Roster roster() const;
  void start(Actions& actions, Time now);
  void start_round(int round, Actions& actions, Time now);
  WayOrder order_for(const Guest& guest) const;
  void go_on(Actions& actions, Time now);
  void lose(Connection connection);
  void finish(Actions& actions);
  WayFacts& way(int from, int to);
  const WayFacts& way(int from, int to) const;

  Options options_;
  Time begin_;
  Time deadline_;
  Phase phase_ = Phase::gathering;
  std::map<Connection, Guest> guests_;
  int64_t arrivals_ = 0;
  int round_ = 0;
  std::set<Connection> awaited_;
  std::vector<Connection> order_;  // by number; of a lost host, too
  HostsFacts facts_;
};

}  // namespace launcher
