#include "launcher/progress/stack.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "launcher/fd.h"
#include "launcher/shortened.h"
#include "launcher/text_file.h"

namespace launcher {
namespace {

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

/// What a command writes; empty where it fails.
std::string output_of(const std::vector<std::string>& command) {
  Pipe pipe = make_pipe();
  const pid_t child = check(::fork(), "fork");
  if (child == 0) {
    run_tool(command, pipe.write);
  }
  pipe.write.reset();
  std::string text;
  std::array<char, 16 * 1024> piece;
  for (;;) {
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

/// With C++ names as their program has them.
std::string demangled(std::string_view line) {
  std::string text;
  while (!line.empty()) {
    const bool is_name = line.rfind("_Z", 0) == 0;
    const size_t space = line.find(' ');
    const std::string word(
        line.substr(0, is_name || space == line.npos ? space : space + 1));
    const std::unique_ptr<char, void (*)(void*)> name(
        is_name ? abi::__cxa_demangle(word.c_str(), nullptr, nullptr, nullptr)
                : nullptr,
        std::free);
    text += name ? name.get() : word;
    line.remove_prefix(word.size());
  }
  return text;
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

std::string stack_by_tool(pid_t pid) {
  const std::string number = std::to_string(pid);
  if (runs_python(pid)) {
    const std::string text = output_of({"py-spy", "dump", "--pid", number});
    if (!text.empty()) {
      return shortened(text, kMostShown);
    }
  }
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
                                  number,
                                  "-ex",
                                  "thread apply all backtrace 24"}));
}

}  // namespace launcher
