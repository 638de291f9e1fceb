#pragma once

#include <sys/types.h>

#include <cstddef>

namespace launcher {

/// Memory of its own for a child to begin in. It must be there until the child
/// has executed its program, or has ended.
class ChildStack {
 public:
  static constexpr size_t kBytes = 16 * 1024;

  /// Without memory where there is none left.
  ChildStack();
  ~ChildStack();
  ChildStack(ChildStack&& other) noexcept;
  ChildStack& operator=(ChildStack&&) = delete;

  explicit operator bool() const { return memory_ != nullptr; }
  char* begin() const { return memory_; }

 private:
  char* memory_;
};

/// fork() straight into a cgroup: moving a process there later costs the kernel
/// 15 ms.
///
/// @returns -1 where the kernel or a sandbox does not offer it
pid_t fork_into(int cgroup_fd);

/// The same without a copy of our memory, which takes the kernel ten times as
/// long as all else: the child calls `run` and uses our memory until its exec,
/// beside us and all others. It may change only what is in its stack, not even
/// errno, and must not return. Unlike after vfork(), nobody waits for it.
///
/// @param size of the stack's lower part that it may have
/// @returns -1 where the kernel, a sandbox or this build does not offer it
pid_t clone_into(int cgroup_fd,
                 const ChildStack& stack,
                 size_t size,
                 void (*run)(void* argument),
                 void* argument);

/// A system call that leaves errno alone, where clone_into() is offered.
///
/// @returns its result, or -errno
long raw_call(long number, long first, long second = 0, long third = 0);

}  // namespace launcher
