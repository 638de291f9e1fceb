#pragma once

#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <csignal>

namespace launcher {

/// What ddprun has otherwise than its caller left it, while this lives. Every
/// worker gets the caller's back.
///
/// - SIGCHLD has its default action: where it is ignored, the kernel forgets a
///   child before anybody has asked how it ended.
/// - SIGPIPE and SIGXFSZ are ignored: a reader that is gone and a file that is
///   too large are errors of write().
/// - As many files may be open as the hard limit allows: each worker takes five
///   of them, and many systems give 1,024.
/// - umask takes no rights from the owner of what is made: it is ddprun, which
///   has to write there.
class CallerSettings {
 public:
  CallerSettings();
  ~CallerSettings() { restore(); }
  CallerSettings(const CallerSettings&) = delete;
  CallerSettings& operator=(const CallerSettings&) = delete;

  /// The caller's again. Async-signal-safe, for a child before its exec.
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
