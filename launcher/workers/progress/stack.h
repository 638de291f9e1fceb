#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

// Where a process is that does nothing.
namespace launcher {

/// What /proc says: "in the kernel: futex_wait_queue, system call 202";
/// empty where it says nothing.
std::string kernel_place(pid_t pid);

/// The stacks of a process' threads: of a Python program by py-spy, else by
/// gdb; empty where neither is installed or may trace the process. Waits for
/// the tools: to be called in a process of its own, with which they end.
std::string stack_of(pid_t pid);

/// Says how to get stacks, where stack_of() has found none.
std::string stack_advice();

/// Of what gdb writes the threads and their frames, at most some of each, with
/// C++ names demangled: gdb would demangle all of LibTorch's.
std::string frames_of_gdb(std::string_view output);

}  // namespace launcher
