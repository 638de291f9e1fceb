#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>

namespace ddp::detail {

/// Runs one function at a time on a separate thread. Not thread-safe.
class BackgroundTask {
 public:
  BackgroundTask() = default;
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;
  /// Abandons a thread that still runs; the objects that it uses must stay
  /// alive.
  ~BackgroundTask();

  /// Starts `work` on a new thread, which blocks all signals. Requires
  /// is_idle().
  void start(std::function<void()> work);

  /// True from `start` until `finish` has returned or thrown.
  bool is_started() const { return done_.valid(); }
  /// Returns true if the work has ended or none was started.
  bool is_idle() const;

  /// Waits until the work has ended, at most `patience`. Returns false on
  /// time-out.
  /// @throws the exception of the work, once.
  bool finish(std::chrono::milliseconds patience);

 private:
  std::thread thread_;
  std::future<void> done_;
};

}  // namespace ddp::detail
