#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "launcher/workers/output/log_writer.h"

namespace launcher {

/// A log file of ddprun, written through a LogWriter. Bytes are written
/// unchanged.
class LogFile {
 public:
  /// @param path of the file, for messages
  /// @param writer must outlive this object
  LogFile(Fd file, std::string path, LogWriter& writer)
      : writer_(&writer),
        number_(writer.open(std::move(file), std::move(path))) {}

  void write(std::string_view bytes) { writer_->write(number_, bytes); }
  /// Closes the file after the pending writes.
  void finish() { writer_->close(number_); }
  bool is_congested() const { return writer_->is_congested(); }

 private:
  LogWriter* writer_;
  LogWriter::File number_;
};

}  // namespace launcher
