#include "launcher/workers/progress/stacks.h"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

#include "launcher/base/text.h"
#include "launcher/base/text_file.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;

constexpr const char* kEndTimer = "stacks";
// With the second in which the last tool may end this makes ten. A py-spy that
// hangs leaves time for gdb.
constexpr milliseconds kLimit{9'000};
constexpr milliseconds kPySpyLimit{4'000};
// Enough: gdb reads much data of a large program, and hung workers mostly wait
// for the first one.
constexpr size_t kMostStacks = 4;
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

std::vector<std::string> py_spy(pid_t pid) {
  return {"py-spy", "dump", "--pid", std::to_string(pid)};
}

std::vector<std::string> gdb(pid_t pid) {
  return {"gdb",
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
          "thread apply all backtrace 24"};
}

/// Returns "" if the tool failed or took too long.
std::string output_of(const CommandEnd& end) {
  return end.status && end.status->is_success() ? end.output : "";
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

std::string stack_advice() {
  return is_in_path("gdb") || is_in_path("py-spy")
             ? "no stack: gdb and py-spy could not trace the process; allow it "
               "(sysctl kernel.yama.ptrace_scope=0, in a container "
               "--cap-add=SYS_PTRACE)"
             : "no stack: install gdb, for Python programs py-spy, so that the "
               "next report has one";
}

Stacks::Stacks(EventLoop& loop,
               const std::vector<pid_t>& processes,
               const Environment& environment,
               Handler handler)
    : loop_(loop),
      environment_(environment),
      handler_(std::move(handler)),
      deadline_(Timers::Clock::now() + kLimit),
      texts_(processes.size()),
      commands_(std::min(processes.size(), kMostStacks)),
      missing_(commands_.size()) {
  for (size_t index = 0; index < commands_.size(); ++index) {
    const pid_t pid = processes[index];
    if (runs_python(pid)) {
      run(index, py_spy(pid), kPySpyLimit, [this, index, pid](auto& end) {
        const std::string text = shortened(output_of(end), kMostShown);
        text.empty() ? run_gdb(index, pid) : add(index, text);
      });
    } else {
      run_gdb(index, pid);
    }
  }
  if (commands_.empty()) {
    end();
  }
}

Stacks::~Stacks() {
  loop_.disarm_timer(kEndTimer);
}

bool Stacks::runs(pid_t pid) const {
  return std::any_of(commands_.begin(),
                     commands_.end(),
                     [pid](const std::optional<Command>& command) {
                       return command && command->pid() == pid;
                     });
}

void Stacks::run_gdb(size_t index, pid_t pid) {
  const auto left = std::max(
      std::chrono::ceil<milliseconds>(deadline_ - Timers::Clock::now()),
      milliseconds(0));
  run(index, gdb(pid), left, [this, index](const CommandEnd& end) {
    add(index, frames_of_gdb(output_of(end)));
  });
}

void Stacks::run(size_t index,
                 const std::vector<std::string>& argv,
                 milliseconds limit,
                 Command::Handler handler) {
  try {
    commands_[index].emplace(
        loop_,
        CommandSpec{.argv = argv, .environment = environment_, .limit = limit},
        std::move(handler));
  } catch (const std::system_error&) {
    add(index, "");  // at a limit of processes; the report has no stack then
  }
}

void Stacks::add(size_t index, const std::string& text) {
  commands_[index].reset();
  texts_[index] = text;
  if (--missing_ == 0) {
    end();
  }
}

/// The handler may destroy this object, whose constructor may have called.
void Stacks::end() {
  loop_.arm_timer(kEndTimer, {}, [this] {
    const Handler handler = std::move(handler_);
    const std::vector<std::string> texts = std::move(texts_);
    handler(texts);
  });
}

}  // namespace launcher
