#pragma once

#include <sys/types.h>

#include <string>

#include "launcher/fd.h"

namespace launcher {

/// A tiny process that does nothing but outlive ddprun: when ddprun dies
/// without cleaning up (`kill -9`), it kills what is left of the job. The
/// kernel kills the workers themselves; the guardian is for what they started.
///
/// It knows the job's processes by its cgroup, and by a variable of their
/// environment. What can hide from both is a process that cleared its
/// environment on a host where ddprun may make no cgroup. When a job in a job
/// goes with the outer one, the inner one's empty folder in TMPDIR may stay.
class Guardian {
 public:
  struct Duty {
    std::string mark;       ///< "NAME=text": how the environment entry begins
    std::string cgroup;     ///< empty: none
    std::string directory;  ///< to be removed; empty: none
  };

  explicit Guardian(const Duty& duty);
  /// All is well: lets it go.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

 private:
  Fd lifeline_;
  pid_t pid_;
};

}  // namespace launcher
