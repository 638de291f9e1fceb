#include "launcher/workers/progress/stack.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/base/shortened.h"
#include "launcher/base/text_file.h"
#include "launcher/workers/progress/demangled.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kToolPatience{10'000};
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

/// Returns the output of a command; empty if it fails or exceeds `patience`.
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
                                  "-iex",  // demangled() does it below
                                  "set demangle-style none",
                                  "-p",
                                  std::to_string(pid),
                                  "-ex",
                                  "thread apply all backtrace 24"},
                                 patience));
}

bool is_in_path(const std::string& tool) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + tool).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
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

std::string stack_of(pid_t pid) {
  const auto end = steady_clock::now() + kToolPatience;
  const std::string text =
      runs_python(pid) ? stack_by_py_spy(pid, kToolPatience) : "";
  return !text.empty() ? text
                       : stack_by_gdb(pid,
                                      std::chrono::duration_cast<milliseconds>(
                                          end - steady_clock::now()));
}

std::string stack_advice() {
  return is_in_path("gdb") || is_in_path("py-spy")
             ? "no stack: gdb and py-spy could not trace the process; allow it "
               "(sysctl kernel.yama.ptrace_scope=0, in a container "
               "--cap-add=SYS_PTRACE)"
             : "no stack: install gdb, for Python programs py-spy, so that the "
               "next report has one";
}

}  // namespace launcher
