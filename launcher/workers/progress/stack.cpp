#include "launcher/workers/progress/stack.h"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/base/shortened.h"
#include "launcher/base/text_file.h"
#include "launcher/machine/run_and_capture.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Less than Stacks waits, and a py-spy that hangs leaves time for gdb.
constexpr milliseconds kTimeout{9'000};
constexpr milliseconds kPySpyTimeout{4'000};
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

/// Returns the stdout of a command that the shell finds in PATH; "" when the
/// command fails or takes longer than `limit`.
std::string output_of(const std::vector<std::string>& command,
                      milliseconds limit) {
  const CommandEnd end = run_and_capture({.argv = found_in_path(command),
                                          .environment = current_environment(),
                                          .limit = limit});
  return end.status && end.status->is_success() ? end.output : "";
}

std::string stack_by_py_spy(pid_t pid, milliseconds timeout) {
  return shortened(
      output_of({"py-spy", "dump", "--pid", std::to_string(pid)}, timeout),
      kMostShown);
}

std::string stack_by_gdb(pid_t pid, milliseconds timeout) {
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
                                 timeout));
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

/// Returns the text with its mangled C++ names demangled.
std::string demangled(std::string_view text) {
  constexpr std::string_view kOfNames =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.$";
  std::string result;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_not_of(kOfNames), text.size());
    const std::string word(text.substr(0, end));
    const std::unique_ptr<char, void (*)(void*)> name(
        word.rfind("_Z", 0) == 0
            ? abi::__cxa_demangle(word.c_str(), nullptr, nullptr, nullptr)
            : nullptr,
        std::free);
    result += name ? name.get() : word;
    text.remove_prefix(end);
    const size_t next = std::min(text.find_first_of(kOfNames), text.size());
    result += text.substr(0, next);
    text.remove_prefix(next);
  }
  return result;
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
  const auto end = steady_clock::now() + kTimeout;
  const std::string text =
      runs_python(pid) ? stack_by_py_spy(pid, kPySpyTimeout) : "";
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
