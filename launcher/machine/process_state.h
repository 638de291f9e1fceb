#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace launcher {

/// The letter in the text of /proc/PID/stat: 'R' runs, 'T' is stopped by a
/// signal; 0 when it cannot be read.
char state_in_stat(std::string_view stat);

/// The process is stopped by a signal; false where /proc does not say.
bool is_stopped(pid_t pid);

/// A signal is in a mask of the text of /proc/PID/status: in "SigCgt:" of
/// those that the process catches. False where there is no such mask.
bool names_signal(const std::string& status,
                  const std::string& mask,
                  int number);

/// The process that reports for a worker: `named`, where that is a child of the
/// worker's session, else the worker itself.
pid_t reporter_of(pid_t worker, pid_t named);

}  // namespace launcher
