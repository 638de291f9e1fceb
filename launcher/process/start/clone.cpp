#include "launcher/process/start/clone.h"

#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>

// A sanitizer keeps its own books of the stacks that there are.
#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DDP_HAS_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DDP_HAS_SANITIZER
#endif
#if defined(__x86_64__) && !defined(DDP_HAS_SANITIZER)
#define DDP_HAS_CLONE_INTO
#endif

namespace launcher {
namespace {

// Kernel headers may be older than the kernel.
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

struct CloneArguments {  // struct clone_args of Linux 5.7
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size,
      tls, set_tid, set_tid_size, cgroup;
};

CloneArguments arguments_for(int cgroup_fd) {
  CloneArguments arguments{};
  arguments.flags = CLONE_INTO_CGROUP;
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<uint64_t>(cgroup_fd);
  return arguments;
}

}  // namespace

ChildStack::ChildStack() {
  void* memory = ::mmap(nullptr,
                        kBytes,
                        PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
                        -1,
                        0);
  memory_ = memory != MAP_FAILED ? static_cast<char*>(memory) : nullptr;
}

ChildStack::ChildStack(ChildStack&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)) {}

ChildStack::~ChildStack() {
  if (memory_ != nullptr) {
    ::munmap(memory_, kBytes);
  }
}

pid_t fork_into(int cgroup_fd) {
  CloneArguments arguments = arguments_for(cgroup_fd);
  return static_cast<pid_t>(
      ::syscall(SYS_clone3, &arguments, sizeof(arguments)));
}

#ifdef DDP_HAS_CLONE_INTO
pid_t clone_into(int cgroup_fd,
                 const ChildStack& stack,
                 size_t size,
                 void (*run)(void* argument),
                 void* argument) {
  CloneArguments arguments = arguments_for(cgroup_fd);
  arguments.flags |= CLONE_VM;
  arguments.stack = reinterpret_cast<uint64_t>(stack.begin());
  arguments.stack_size = size & ~size_t{15};
  long result = SYS_clone3;
  // The child comes back to an empty stack, with our other registers.
  __asm__ volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "movq %[argument], %%rdi\n\t"
      "callq *%[run]\n\t"
      "ud2\n"
      "1:"
      : "+a"(result)
      : "D"(&arguments),
        "S"(sizeof(arguments)),
        [run] "r"(run),
        [argument] "r"(argument)
      : "rcx", "r11", "memory", "cc");
  return result >= 0 ? static_cast<pid_t>(result) : -1;
}

long raw_call(long number, long first, long second, long third) {
  long result = number;
  __asm__ volatile("syscall"
                   : "+a"(result)
                   : "D"(first), "S"(second), "d"(third)
                   : "rcx", "r11", "memory", "cc");
  return result;
}
#else
pid_t clone_into(
    int, const ChildStack&, size_t, void (*)(void* argument), void*) {
  return -1;
}

long raw_call(long number, long first, long second, long third) {
  const long result = ::syscall(number, first, second, third);
  return result < 0 ? -errno : result;
}
#endif

}  // namespace launcher
