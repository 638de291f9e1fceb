#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/hosts/protocol/host_table.h"

// What a host waits for while others work, said to people. Between two worlds:
// Gathering::describe().
namespace launcher {

/// Of a host whose workers have succeeded.
///
/// @param count of how many others they have not
std::string wait_for_others_text(const HostTable& hosts,
                                 int count,
                                 int generation);

/// Of a host that has no place in the present world.
///
/// @param has_success of a host, after which the job takes in no other
std::string wait_for_place_text(bool has_success);

/// Of a host that the coordinator does not answer.
///
/// @param was_heard before
std::string wait_for_answer_text(bool was_heard, std::chrono::nanoseconds left);

/// Of hosts that are missing where they meet on loopback: why, and what to do.
///
/// @param place "--rdzv-endpoint localhost:29400"; empty: not on loopback
std::string loopback_text(const std::string& place);

/// " in 7 s": not before that time is over.
std::string in_seconds(std::chrono::nanoseconds time);

/// When a host that waits says so: after a while, a minute later, then every
/// five minutes. Pure: the time is told.
class WaitingNews {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void start(Time now, std::chrono::milliseconds first);
  void stop() { due_.reset(); }
  void said(Time now);

  /// Nothing while nobody waits.
  std::optional<Time> due() const { return due_; }
  bool is_due(Time now) const { return due_ && now >= *due_; }

 private:
  std::optional<Time> due_;
  bool was_said_ = false;
};

}  // namespace launcher
