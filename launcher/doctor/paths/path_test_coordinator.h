#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/doctor/paths/path_messages.h"

namespace launcher {

/// Rank 0's part of the path test: waits for every worker's hello, then runs
/// round after round. Pure: uses no sockets and no clock.
///
/// In round 0 every host connects to every other host, all at the same time. In
/// round r each host sends more data to the r-th host after it, so that no host
/// has two senders: N - 1 rounds measure all paths of N hosts. A worker that
/// does not answer in time is lost, and the others continue.
class PathTestCoordinator {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Connection = uint64_t;
  /// Messages for every worker that said hello and is not lost.
  using Broadcasts = std::vector<PathMessage>;

  PathTestCoordinator(int host_count, Time now);

  /// Handles a message of a worker.
  ///
  /// @param here address of rank 0's end of that connection
  Broadcasts on_message(Connection from,
                        const std::string& here,
                        const PathMessage& message,
                        Time now);
  Broadcasts on_closed(Connection from, Time now);
  Broadcasts on_time(Time now);

  Time next_deadline() const { return deadline_; }
  bool is_done() const { return phase_ == Phase::done; }
  /// Connections of the workers that said hello and are not lost, with their
  /// ranks.
  const std::map<Connection, int>& ranks() const { return ranks_; }

  /// Returns the whole result: PathPeers, a PathReport for each rank, PathEnd.
  std::vector<PathMessage> results() const;

  /// Time for every worker to say hello.
  static constexpr std::chrono::seconds kHelloTime{30};
  /// Time for a round; a worker that is silent for longer is lost.
  static constexpr std::chrono::seconds kRoundTime{10};
  /// No round starts later than this after round 0.
  static constexpr std::chrono::seconds kMeasuringTime{60};

 private:
  enum class Phase { gathering, rounds, done };

  void add_worker(Connection from,
                  const std::string& here,
                  const PathHello& hello);
  void add_report(Connection from, const PathReport& report);
  void start(Broadcasts& broadcasts, Time now);
  void finish_round(Broadcasts& broadcasts, Time now);
  void start_round(int round, Time now);
  void lose(Connection connection);
  int host_count() const { return static_cast<int>(peers_.size()); }

  Phase phase_ = Phase::gathering;
  Time begin_;
  Time deadline_;
  std::vector<PathPeer> peers_;  // by rank
  std::string own_address_;      // rank 0's, as used by other hosts
  std::map<Connection, int> ranks_;
  int round_ = 0;
  std::set<int> awaited_;                        // ranks, in a round
  std::vector<std::map<int, PathFacts>> paths_;  // by rank, by target
  std::vector<std::string> lost_;
};

}  // namespace launcher
