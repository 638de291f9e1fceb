#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "launcher/base/event_loop.h"
#include "launcher/base/fd.h"
#include "launcher/workers/output/dropped_output.h"

namespace launcher {

/// Writes log files in a separate process. A write to a file server that does
/// not answer then blocks only that process, and ddprun still handles worker
/// exits and signals. Bytes that cannot be written are lost and recorded; later
/// bytes are tried again.
///
/// Not thread-safe: use from the event loop's thread only.
class LogWriter {
 public:
  using File = uint32_t;

  /// @param losses records lost output; must outlive this object
  LogWriter(EventLoop& loop, DroppedOutput& losses);
  /// Discards the bytes that are not written yet.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Kind of content of a file.
  enum class Content {
    bytes,
    lines,  ///< start a new line after a loss
  };

  /// Takes ownership of a file to write to. Starts the writer process if
  /// necessary.
  ///
  /// @param path of the file, for messages
  /// @throws std::system_error if the process cannot be created
  File open(Fd file, std::string path, Content content = Content::bytes);
  /// Returns whether the file is open. Files are lost if the writer process is
  /// killed.
  bool is_open(File file) const { return file >= oldest_file_; }
  void write(File file, std::string_view bytes);
  /// Closes the file after the pending writes.
  void close(File file);

  /// Returns whether so much output is queued that workers should not be read.
  bool is_congested() const;
  /// Returns whether all bytes are written or lost and all closed files are
  /// closed on disk.
  bool is_drained() const { return answers_awaited_ == 0; }

 private:
  struct Request {
    File file;
    std::string bytes{};
    bool closes = false;
    Fd opened{};
    Content content = Content::bytes;
  };

  void start();
  void push(Request request);
  void send_more();
  void watch(bool for_room);
  void read_answer();
  void give_up();

  EventLoop& loop_;
  DroppedOutput& losses_;
  pid_t pid_ = 0;  // 0: no process
  Fd socket_;
  EventLoop::Token watch_ = 0;
  bool awaits_room_ = false;
  std::deque<Request> requests_;  // not sent yet
  size_t waiting_bytes_ = 0;
  size_t answers_awaited_ = 0;
  File oldest_file_ = 1;  // first file of the current process
  File last_file_ = 0;
  std::map<File, std::string> paths_;
};

}  // namespace launcher
