#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace launcher {

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

/// " in 7 s": the time until the end of a wait in seconds, rounded up.
std::string in_seconds(std::chrono::nanoseconds time);

}  // namespace launcher
