#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/base/event_loop.h"
#include "launcher/machine/process.h"

namespace launcher {

/// A program to run, and the part of its output to keep.
struct CommandSpec {
  enum class Errors { drop, to_output, capture };

  std::vector<std::string>
      argv;  ///< argv[0] without a slash: looked up in PATH
  const Environment& environment;
  std::chrono::milliseconds limit;     ///< then it gets SIGKILL
  std::chrono::milliseconds grace{0};  ///< time after SIGTERM, before SIGKILL
  size_t most_bytes = 1 << 20;         ///< of each stream, its beginning
  Errors errors = Errors::drop;        ///< stderr
};

/// How a command ended.
struct CommandEnd {
  std::optional<ExitStatus> status;  ///< std::nullopt: it ran past its limit
  std::string output;
  std::string errors;
};

/// Runs a program on the event loop, with stdin from /dev/null. At its end, or
/// after its limit, the rest of its process group gets SIGKILL. Processes that
/// have left the group are not waited for, nor is a command that the kernel
/// holds for a second after SIGKILL. Exit code 127: it cannot be executed.
///
/// Example:
/// @code
///   Command list(loop,
///                {.argv = {"nvidia-smi", "-L"},
///                 .environment = environment,
///                 .limit = 30s},
///                [](const CommandEnd& end) { use(end.output); });
/// @endcode
class Command {
 public:
  using Handler = std::function<void(const CommandEnd&)>;

  /// To be called from the main thread; see Process.
  ///
  /// @param handler is called by the loop; may destroy this object
  /// @throws std::system_error if no process can be created
  Command(EventLoop& loop, const CommandSpec& spec, Handler handler);
  /// Kills the command and its process group if it has not ended. Does not wait
  /// for the end: it is a stray then.
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return process_->pid(); }

 private:
  struct Stream {
    Fd pipe;
    EventLoop::Token watch = 0;
    std::string text{};
  };

  void watch(Stream& stream);
  bool read(Stream& stream);
  void check_end();
  void on_limit();
  void kill();
  void finish();

  EventLoop& loop_;
  Handler handler_;
  size_t most_bytes_;
  std::chrono::milliseconds grace_;
  Stream output_;
  Stream errors_;
  std::optional<Process> process_;
  std::string timer_;  // name of the timer of the next signal
  std::string poll_;   // name of the timer of checks; without a pidfd
  EventLoop::Token exit_watch_ = 0;
  std::optional<ExitStatus> status_;
  bool is_late_ = false;
};

/// Runs a command on an event loop of its own. For a process that has nothing
/// else to do.
///
/// @throws std::system_error if no process can be created
CommandEnd run_command(const CommandSpec& spec);

}  // namespace launcher
