#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "launcher/base/event_loop.h"

namespace launcher {

/// Name of a job's status file in the job's folder.
inline constexpr std::string_view kStatusFileName = "status.json";

/// Keeps a job's status in a file: writes it immediately and then every second.
/// Each write replaces the file atomically, so that a reader always gets a
/// complete status. If the disk is full at the first write, the file is empty.
/// The lock of the folder shows that the job is alive (JobFolder).
class StatusFile {
 public:
  /// @param folder of the job; if empty or not writable, there is no file
  /// @param describe returns the file's text
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
  std::string path_;  // empty: no file
};

}  // namespace launcher
