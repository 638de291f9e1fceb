#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/base/event_loop.h"
#include "launcher/machine/command.h"

// Location of a process that makes no progress.
namespace launcher {

/// Collects the stacks of several processes concurrently: by py-spy for a
/// Python program, otherwise or if py-spy fails by gdb. Gives up after ten
/// seconds.
class Stacks {
 public:
  /// Receives one text per process, in order; empty if neither tool is
  /// installed or may trace the process. May destroy this object.
  using Handler = std::function<void(const std::vector<std::string>&)>;

  /// @param environment of the tools; must outlive this object
  Stacks(EventLoop& loop,
         const std::vector<pid_t>& processes,
         const Environment& environment,
         Handler handler);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  /// Returns whether the process is a running tool.
  bool runs(pid_t pid) const;

 private:
  void run_gdb(size_t index, pid_t pid);
  void run(size_t index,
           const std::vector<std::string>& argv,
           std::chrono::milliseconds limit,
           Command::Handler handler);
  void add(size_t index, const std::string& text);
  void end();

  EventLoop& loop_;
  const Environment& environment_;
  Handler handler_;
  Timers::Time deadline_;
  std::vector<std::string> texts_;
  std::vector<std::optional<Command>> commands_;
  size_t missing_;
};

/// Returns the kernel function and system call of a process from /proc: "in the
/// kernel: futex_wait_queue, system call 202". Empty if unknown.
std::string kernel_place(pid_t pid);

/// Explains how to enable stacks if Stacks found none.
std::string stack_advice();

/// Extracts the threads and frames from gdb's output, shortened, with C++ names
/// demangled. gdb itself would demangle all names of LibTorch.
std::string frames_of_gdb(std::string_view output);

}  // namespace launcher
