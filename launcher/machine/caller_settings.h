#pragma once

#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <csignal>

namespace launcher {

/// Process settings that ddprun changes for itself during this object's
/// lifetime. restore() gives workers the caller's values.
///
/// - SIGCHLD has its default action: if it were ignored, the kernel would
///   discard the exit status of children.
/// - SIGPIPE and SIGXFSZ are ignored: a closed reader and a file size limit
///   become errors of write().
/// - RLIMIT_NOFILE is raised to the hard limit: each worker needs five
///   descriptors, and many systems have a soft limit of 1,024.
/// - umask keeps the owner's permissions, because ddprun must write to the
///   files and folders that it creates.
class CallerSettings {
 public:
  CallerSettings();
  ~CallerSettings() { restore(); }
  CallerSettings(const CallerSettings&) = delete;
  CallerSettings& operator=(const CallerSettings&) = delete;

  /// Restores the caller's values. Async-signal-safe, for a child before its
  /// exec.
  void restore() const;

 private:
  struct Action {
    int number;
    struct sigaction callers;
  };

  std::array<Action, 3> actions_{};
  rlimit callers_files_{};
  mode_t callers_mask_ = 0;
};

}  // namespace launcher
