#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "launcher/base/event_loop.h"

namespace launcher {

/// Name of a job's status file, in a folder of the job's.
inline constexpr std::string_view kStatusFileName = "status.json";

/// Keeps a job's status in a file: written at once, and then each second, as a
/// new file that replaces the old one, so that a reader always gets a whole
/// one. Where a full disk takes no first one, the file is empty. The folder's
/// lock tells that the job lives (StatusFolder).
class StatusFile {
 public:
  /// @param folder of the job's; empty, or not writable: there is no file
  /// @param describe gives the file's text
  StatusFile(EventLoop& loop,
             const std::string& folder,
             std::function<std::string()> describe);
  /// Removes the file.
  ~StatusFile();
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

 private:
  void write();

  EventLoop& loop_;
  std::function<std::string()> describe_;
  std::string path_;  // empty: there is no file
};

}  // namespace launcher
