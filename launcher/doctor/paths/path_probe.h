#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/doctor/paths/hosts_facts.h"
#include "launcher/doctor/paths/path_messages.h"
#include "launcher/net/connection.h"

namespace launcher {

/// Length of the long lines that a PathProbe sends.
inline constexpr size_t kProbeLine = 64 * 1024;

/// Measures the path to one EchoServer over one connection: checks the server's
/// id, times a few short messages, then sends long ones.
class PathProbe {
 public:
  /// Called once, by the loop. May destroy the probe.
  using OnDone = std::function<void(const PathFacts&)>;

  /// @param number of the peer: PathFacts::to
  /// @param target the peer and its EchoServer
  /// @param bytes to send in long lines
  /// @param limit time after which the probe ends with its measurements so far
  PathProbe(EventLoop& loop,
            int number,
            PathPeer target,
            int64_t bytes,
            std::chrono::milliseconds limit,
            OnDone on_done);
  ~PathProbe();
  PathProbe(const PathProbe&) = delete;
  PathProbe& operator=(const PathProbe&) = delete;

  /// Ends the probe as if the limit had passed.
  void give_up();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage { connecting, greeting, pinging, sending };

  void begin();
  void on_lines(const std::vector<std::string>& lines);
  void ping();
  void fill_window();
  void end_by_error(int error);
  void end(PathFault fault, const std::string& error = "");

  EventLoop& loop_;
  int number_;
  PathPeer target_;
  int64_t lines_to_send_;
  OnDone on_done_;
  std::string timer_;
  Stage stage_ = Stage::connecting;
  Clock::time_point since_;  // of the current ping, or of the first long line
  int pings_ = 0;
  Clock::duration round_trip_ = Clock::duration::max();
  int64_t sent_ = 0;
  int64_t answered_ = 0;
  std::unique_ptr<Connection> connection_;
};

/// Runs the probes of one round concurrently.
class PathProbes {
 public:
  /// Called once by the loop, when all probes have ended. Must not destroy the
  /// probes.
  using OnDone = std::function<void(const std::vector<PathFacts>&)>;

  /// @param targets numbers of peers; at least one
  /// @param bytes to send to each
  PathProbes(EventLoop& loop,
             const std::vector<PathPeer>& peers,
             const std::vector<int>& targets,
             int64_t bytes,
             OnDone on_done);

 private:
  std::vector<PathFacts> paths_;
  size_t left_;
  OnDone on_done_;
  std::vector<std::unique_ptr<PathProbe>> all_;
};

}  // namespace launcher
