#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>

namespace ddp::detail {

/// Runs a function on a thread of its own, one at a time. Not thread-safe.
class BackgroundTask {
 public:
  BackgroundTask() = default;
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;
  /// Leaves behind a thread that still runs; what it uses must live on.
  ~BackgroundTask();

  /// Must be idle. The thread blocks all signals.
  void start(std::function<void()> work);

  /// True from `start` until `finish` has returned or thrown.
  bool is_started() const { return done_.valid(); }
  /// True when the work has ended, or none was started.
  bool is_idle() const;

  /// Waits until the work has ended. False when that takes longer than
  /// `patience`.
  /// @throws what the work threw, once.
  bool finish(std::chrono::milliseconds patience);

 private:
  std::thread thread_;
  std::future<void> done_;
};

}  // namespace ddp::detail
