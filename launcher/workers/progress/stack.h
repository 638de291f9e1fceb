#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

// Location of a process that makes no progress.
namespace launcher {

/// Returns the kernel function and system call of a process from /proc: "in the
/// kernel: futex_wait_queue, system call 202". Empty if unknown.
std::string kernel_place(pid_t pid);

/// Returns the stacks of a process's threads: by py-spy for a Python program,
/// otherwise or if py-spy fails by gdb. Empty if neither tool is installed or
/// may trace the process. Blocks until the tools finish or ten seconds have
/// passed. To be called in a separate process; the tools end with it.
std::string stack_of(pid_t pid);

/// Explains how to enable stacks if stack_of() found none.
std::string stack_advice();

/// Extracts the threads and frames from gdb's output, shortened, with C++ names
/// demangled. gdb itself would demangle all names of LibTorch.
std::string frames_of_gdb(std::string_view output);

}  // namespace launcher
