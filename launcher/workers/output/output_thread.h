#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "launcher/base/event_loop.h"
#include "launcher/base/fd.h"
#include "launcher/workers/output/dropped_output.h"

namespace launcher {

/// Creates and writes files on a thread of its own, by blocking system calls. A
/// terminal without a reader, or a file server that does not answer, stops this
/// thread and not ddprun. Each file that must be independent of others has its
/// own OutputThread.
///
/// Bytes that cannot be written are lost and recorded; later bytes are tried
/// again and start on a new line. If the reader is gone (`| head`, a closed
/// terminal), later bytes are dropped silently.
///
/// The thread blocks all signals. All functions are for the event loop's
/// thread.
class OutputThread {
 public:
  struct File;

  /// @param losses records lost output; must outlive this object
  /// @throws std::system_error if the thread cannot be started
  OutputThread(EventLoop& loop, DroppedOutput& losses);
  /// Waits for the rest as drain() does, except after abandon(). Does not wait
  /// for a thread that is blocked, and calls no handler of run().
  ~OutputThread();
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  /// Takes ownership of a file to write to.
  ///
  /// @param name for messages
  static std::shared_ptr<File> open(Fd fd, std::string name);
  void write(const std::shared_ptr<File>& file, std::string_view bytes);
  /// Closes the file after the pending writes.
  void close(const std::shared_ptr<File>& file);

  /// Replaces the file at `path` atomically. Of several texts that wait for the
  /// same file, only the newest is written.
  ///
  /// @param name for messages
  void replace(const std::string& path,
               const std::string& name,
               std::string text);

  /// Runs `task` on the thread, then `done` on the event loop's thread. `task`
  /// must not throw, nor use objects that end before a blocked thread.
  void run(std::function<void()> task, std::function<void()> done);

  /// Returns whether so much output is queued that workers should not be read.
  bool is_congested() const;
  /// Returns whether it is congested and nothing was written for kStallTime.
  bool is_stalled() const;
  static constexpr std::chrono::milliseconds kStallTime{1'000};
  /// Returns whether all bytes are written or recorded as lost, all closed
  /// files are closed on disk and all tasks are done. If not, the event loop
  /// gets a round when they are.
  bool is_drained() const;

  /// Blocks until is_drained(), or until kStallTime after the last progress.
  void drain();
  /// Records the bytes that are not written yet as lost, and ends the thread.
  /// Does nothing if is_drained().
  void abandon();

 private:
  struct State;

  void push(const std::shared_ptr<File>& file);
  void await_end_of_work();
  void record_results();

  EventLoop& loop_;
  DroppedOutput& losses_;
  std::shared_ptr<State> state_;  // shared with the thread, which may be stuck
  EventLoop::Token watch_;
  std::thread thread_;
  std::map<std::string, std::shared_ptr<File>> replaced_;  // by path
};

/// A file that an OutputThread writes. Bytes are written unchanged.
class OutputFile {
 public:
  /// @param name for messages: the path, or "stdout"
  /// @param thread must outlive this object
  OutputFile(Fd fd, std::string name, OutputThread& thread)
      : thread_(&thread),
        file_(OutputThread::open(std::move(fd), std::move(name))) {}

  void write(std::string_view bytes) { thread_->write(file_, bytes); }
  /// Closes the file after the pending writes.
  void finish() { thread_->close(file_); }
  bool is_congested() const { return thread_->is_congested(); }

 private:
  OutputThread* thread_;
  std::shared_ptr<OutputThread::File> file_;
};

}  // namespace launcher
