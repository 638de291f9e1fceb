#include "launcher/progress/stack.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "launcher/fd.h"
#include "launcher/progress/demangled.h"
#include "launcher/progress/own_stack.h"
#include "launcher/shortened.h"
#include "launcher/text_file.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Of the ten seconds that there are in all. A process that says itself where it
// is needs up to three of them.
constexpr milliseconds kToolPatience{10'000};
constexpr milliseconds kToolPatienceBesideOwn{6'500};
constexpr size_t kMostOutput = 1 << 20;
constexpr size_t kMostShown = 6000;

std::string first_word(const std::string& text) {
  return text.substr(0, text.find_first_of(" \n"));
}

bool runs_python(pid_t pid) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink(
      "/proc/" + std::to_string(pid) + "/exe", error);
  return program.filename().string().rfind("python", 0) == 0;
}

[[noreturn]] void run_tool(const std::vector<std::string>& command,
                           const Fd& out) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, STDIN_FILENO);
  ::dup2(out.get(), STDOUT_FILENO);
  ::dup2(null, STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : command) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

/// What a command writes; empty where it fails or takes too long.
std::string output_of(const std::vector<std::string>& command,
                      milliseconds patience) {
  Pipe pipe = make_pipe();
  const pid_t child = check(::fork(), "fork");
  if (child == 0) {
    run_tool(command, pipe.write);
  }
  pipe.write.reset();
  std::string text;
  std::array<char, 16 * 1024> piece;
  const auto end = steady_clock::now() + patience;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - steady_clock::now());
    pollfd output{pipe.read.get(), POLLIN, 0};
    if (left.count() <= 0 || retry_interrupted([&] {
                               return ::poll(
                                   &output, 1, static_cast<int>(left.count()));
                             }) == 0) {
      ::kill(child, SIGKILL);
      break;
    }
    const ssize_t size = retry_interrupted(
        [&] { return ::read(pipe.read.get(), piece.data(), piece.size()); });
    if (size <= 0) {
      break;
    }
    if (text.size() < kMostOutput) {
      text.append(piece.data(), static_cast<size_t>(size));
    }
  }
  int status = 0;
  retry_interrupted([&] { return ::waitpid(child, &status, 0); });
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "";
}

std::string stack_by_py_spy(pid_t pid, milliseconds patience) {
  return shortened(
      output_of({"py-spy", "dump", "--pid", std::to_string(pid)}, patience),
      kMostShown);
}

std::string stack_by_gdb(pid_t pid, milliseconds patience) {
  return frames_of_gdb(output_of({"gdb",
                                  "-nx",
                                  "-batch",
                                  "-iex",
                                  "set auto-load off",
                                  "-iex",
                                  "set debuginfod enabled off",
                                  "-iex",  // a name is demangled below
                                  "set demangle-style none",
                                  "-p",
                                  std::to_string(pid),
                                  "-ex",
                                  "thread apply all backtrace 24"},
                                 patience));
}

}  // namespace

std::string kernel_place(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/";
  const std::string place = first_word(read_text(folder + "wchan"));
  const std::string call = first_word(read_text(folder + "syscall"));
  std::string text;
  if (!place.empty() && place != "0") {
    text = "in the kernel: " + place;
  }
  if (!call.empty() && call != "running" && call != "-1") {
    text += (text.empty() ? "in the kernel: " : ", ") + ("system call " + call);
  }
  return text;
}

std::string frames_of_gdb(std::string_view output) {
  std::string text;
  while (!output.empty()) {
    const std::string_view line = output.substr(0, output.find('\n'));
    if (line.rfind("Thread ", 0) == 0 || line.rfind('#', 0) == 0) {
      text += (text.empty() ? "" : "\n") + demangled(line);
    }
    output.remove_prefix(std::min(line.size() + 1, output.size()));
  }
  return shortened(text, kMostShown);
}

std::vector<StackSource> stack_sources(bool is_python, bool offers_its_own) {
  std::vector<StackSource> sources;
  if (is_python) {
    sources.push_back(StackSource::py_spy);
  }
  sources.push_back(StackSource::gdb);
  if (offers_its_own) {
    // Of Python gdb sees the interpreter alone; of others all threads.
    sources.insert(is_python ? sources.end() - 1 : sources.end(),
                   StackSource::own);
  }
  return sources;
}

std::string stack_of(pid_t pid, const std::string& stack_file) {
  const auto signal = stack_signal(pid, stack_file);
  const auto end =
      steady_clock::now() + (signal ? kToolPatienceBesideOwn : kToolPatience);
  for (const StackSource source :
       stack_sources(runs_python(pid), signal.has_value())) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - steady_clock::now());
    const std::string text =
        source == StackSource::own   ? own_stack(pid, *signal, stack_file)
        : source == StackSource::gdb ? stack_by_gdb(pid, left)
                                     : stack_by_py_spy(pid, left);
    if (!text.empty()) {
      return text;
    }
  }
  return "";
}

}  // namespace launcher
