#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

// What a process writes of its own stacks, as
// ddp/detail/job_files/stack_text.h says.
namespace launcher {

/// The signal at which a process says where it is, by its file of stacks;
/// nothing where it offers none, does not catch that signal, or is stopped.
std::optional<int> stack_signal(pid_t pid, const std::string& file);

/// Sends the signal and waits for the stacks, at most three seconds; empty
/// where none come. To be called in a process of its own.
std::string own_stack(pid_t pid, int signal, const std::string& file);

/// Pure: no more is waited for.
///
/// @param since_asked   since the signal was sent
/// @param since_change  since something was written last, or the same
bool is_answered(std::string_view written,
                 std::chrono::milliseconds since_asked,
                 std::chrono::milliseconds since_change);

/// Pure: stacks as people see them: some of long ones, printable characters,
/// and glibc's "/usr/bin/train(_Z4stepi+0x1f)[0x55d0]" as
/// "step(int)+0x1f in train".
std::string shown_stack(std::string_view written);

}  // namespace launcher
