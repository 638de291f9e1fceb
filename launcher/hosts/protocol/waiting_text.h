#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/hosts/protocol/host_table.h"

// Texts that tell the user why a host waits while others work. For the time
// between two worlds see Gathering::describe().
namespace launcher {

/// Text for a host whose workers have succeeded.
///
/// @param count  number of hosts whose workers have not
std::string wait_for_others_text(const HostTable& hosts,
                                 int count,
                                 int generation);

/// Text for a host without a seat in the present world.
///
/// @param has_success  whether a host has succeeded; the job then admits no
///   other host
std::string wait_for_place_text(bool has_success);

/// Text for a host that gets no answer of the coordinator.
///
/// @param was_heard  whether the coordinator has answered before
std::string wait_for_answer_text(bool was_heard, std::chrono::nanoseconds left);

/// Text for missing hosts when the endpoint is a loopback address, with advice.
///
/// @param place  "--rdzv-endpoint localhost:29400"; empty: not on loopback
std::string loopback_text(const std::string& place);

/// " in 7 s": the time in seconds, rounded up.
std::string in_seconds(std::chrono::nanoseconds time);

/// Times at which a waiting host prints news: after a delay, a minute later,
/// then every five minutes. Pure: the caller gives the time.
class WaitingNews {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void start(Time now, std::chrono::milliseconds first);
  void stop() { due_.reset(); }
  void mark_printed(Time now);

  /// Time of the next news; nothing: the host does not wait.
  std::optional<Time> due() const { return due_; }
  bool is_due(Time now) const { return due_ && now >= *due_; }

 private:
  std::optional<Time> due_;
  bool was_printed_ = false;
};

}  // namespace launcher
