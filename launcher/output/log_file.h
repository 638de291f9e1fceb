#pragma once

#include <string>
#include <string_view>

#include "launcher/fd.h"
#include "launcher/output/losses.h"

namespace launcher {

/// A worker's stdout.log or stderr.log: gets the bytes as they are. What cannot
/// be written is lost, and noted; the next bytes are tried again.
class LogFile {
 public:
  /// @param path of the file, for messages
  /// @param losses must outlive this object
  LogFile(Fd file, std::string path, Losses& losses);

  void write(std::string_view bytes);

  /// No more comes. File servers tell only now what they could not keep.
  void finish();

 private:
  Fd file_;
  std::string path_;
  Losses* losses_;
};

}  // namespace launcher
