#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/doctor/hosts/hosts_facts.h"
#include "launcher/doctor/hosts/way_messages.h"
#include "launcher/loop/event_loop.h"
#include "launcher/net/connection.h"

namespace launcher {

/// Lines that a WayProbe sends, but for the last of them: 64 KiB.
inline constexpr size_t kProbeLine = 64 * 1024;

/// Tries the way to one WayServer, over one connection: whose it is, a few
/// short messages for the time of a round trip, then long ones.
class WayProbe {
 public:
  /// Once, by the loop. May destroy the probe.
  using OnDone = std::function<void(const WayFacts&)>;

  /// @param limit after which it is over, whatever has come
  WayProbe(EventLoop& loop,
           WayOrder::Target target,
           int64_t bytes,
           std::chrono::milliseconds limit,
           OnDone on_done);
  ~WayProbe();
  WayProbe(const WayProbe&) = delete;
  WayProbe& operator=(const WayProbe&) = delete;

  /// As when the limit has passed.
  void give_up();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage { connecting, greeting, pinging, sending };

  void begin();
  void take(const std::vector<std::string>& lines);
  void ping();
  void fill_window();
  void end_by_error(int error);
  void end(WayFault fault, const std::string& error = "");

  EventLoop& loop_;
  WayOrder::Target target_;
  int64_t lines_to_send_;
  OnDone on_done_;
  std::string timer_;
  Stage stage_ = Stage::connecting;
  Clock::time_point since_;  // of the present ping, or of the first long line
  int pings_ = 0;
  Clock::duration round_trip_ = Clock::duration::max();
  int64_t sent_ = 0;
  int64_t answered_ = 0;
  std::unique_ptr<Connection> connection_;
};

/// The probes of one order, all at the same time.
class WayProbes {
 public:
  /// Once, by the loop: of all targets. Must not destroy the probes.
  using OnDone = std::function<void(const WayResults&)>;

  WayProbes(EventLoop& loop, const WayOrder& order, OnDone on_done);

 private:
  WayResults results_;
  size_t left_;
  OnDone on_done_;
  std::vector<std::unique_ptr<WayProbe>> all_;
};

}  // namespace launcher
