#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// Returns the state letter in the text of /proc/PID/stat: 'R' running, 'T'
/// stopped by a signal; 0 if the text is invalid.
char state_in_stat(std::string_view stat);

/// Returns the name of the process's program; empty if /proc does not show the
/// process.
std::string name_of(pid_t pid);

/// Returns whether the process is stopped by a signal; false if /proc does not
/// show the process.
bool is_stopped(pid_t pid);

/// Returns whether the process catches a signal; false if /proc does not show
/// the process.
bool catches_signal(pid_t pid, int number);

/// Returns whether the process runs the commands of a script. A signal that it
/// catches waits for the end of a command, or ends the script.
bool runs_commands(pid_t pid);

/// Returns the process that reports for a worker: `named` if it is in the
/// worker's session, otherwise the worker itself.
pid_t reporter_of(pid_t worker, pid_t named);

/// Returns the open file descriptors of this process. Without /proc, returns
/// all possible numbers, up to 65,536.
std::vector<int> open_descriptors();

}  // namespace launcher
