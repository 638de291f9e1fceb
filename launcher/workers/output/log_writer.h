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

/// Writes log files in a process of its own, since a write to a file server
/// that does not answer blocks: then that process waits, and ddprun goes on
/// hearing of deaths and signals. Bytes that cannot be written are lost, and
/// noted; the next bytes are tried again.
///
/// Belongs to the thread of its event loop.
class LogWriter {
 public:
  using File = uint32_t;

  /// @param losses must outlive this object
  LogWriter(EventLoop& loop, DroppedOutput& losses);
  /// Gives up what is not written yet.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// What a file holds.
  enum class Content {
    bytes,
    lines,  ///< after a loss a new line begins
  };

  /// Takes a file to write to.
  ///
  /// @param path of the file, for messages
  /// @throws std::system_error when no process can be made
  File open(Fd file, std::string path, Content content = Content::bytes);
  /// False once the writing process has been killed: the file is lost.
  bool is_open(File file) const { return file >= oldest_file_; }
  void write(File file, std::string_view bytes);
  /// Closes the file, after what is to be written to it.
  void close(File file);

  /// So much is waiting that nothing more should be read for it.
  bool is_congested() const;
  /// Everything is written or lost, and every file that was closed here is.
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
  pid_t pid_ = 0;  // 0: there is no process
  Fd socket_;
  EventLoop::Token watch_ = 0;
  bool awaits_room_ = false;
  std::deque<Request> requests_;  // not sent yet
  size_t waiting_bytes_ = 0;
  size_t answers_awaited_ = 0;
  File oldest_file_ = 1;  // of this writing process
  File last_file_ = 0;
  std::map<File, std::string> paths_;
};

}  // namespace launcher
