#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

// Where a process is that does nothing.
namespace launcher {

/// What /proc says: "in the kernel: futex_wait_queue, system call 202";
/// empty where it says nothing.
std::string kernel_place(pid_t pid);

/// Who can say where a process is.
enum class StackSource { py_spy, gdb, own };

/// Pure: whom to ask, one after the other until one answers.
std::vector<StackSource> stack_sources(bool is_python, bool offers_its_own);

/// The stacks of a process' threads, by py-spy, by gdb, or as it writes them
/// itself; empty where none of these is there or may look. Waits for them: to
/// be called in a process of its own, with which they end.
///
/// @param stack_file in which it may offer its own
std::string stack_of(pid_t pid, const std::string& stack_file);

/// Of what gdb writes the threads and their frames, at most some of each, with
/// C++ names demangled: gdb would demangle all of LibTorch's.
std::string frames_of_gdb(std::string_view output);

}  // namespace launcher
