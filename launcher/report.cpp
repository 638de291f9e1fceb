#include "launcher/report.h"

#include <algorithm>
#include <csignal>
#include <cstdio>

namespace launcher {
namespace {

std::string elapsed(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(
      text, sizeof(text), "%.1f s", static_cast<double>(time.count()) / 1000);
  return text;
}

std::string hint_for(const WorkerExit& exit) {
  if (exit.status.signal == SIGKILL) {
    return "  not killed by ddprun: often the kernel does it when memory is "
           "full (see dmesg), or a batch system at its limits\n";
  }
  if (exit.status.signal == SIGBUS) {
    return "  often a full /dev/shm or a file that became shorter\n";
  }
  return "";
}

std::string indented(const std::string& text) {
  std::string result = "    | ";
  for (const char c : text) {
    result += c;
    if (c == '\n') {
      result += "    | ";
    }
  }
  return result + "\n";
}

std::string cause_text(const AttemptResult& result, const WorkerExit& cause) {
  std::string text = describe_failure(cause) + "\n";
  text += "  host " + result.host + ", local rank " +
          std::to_string(cause.local_rank) + ", pid " +
          std::to_string(cause.pid) + ", " + elapsed(cause.after) +
          " after its start";
  if (result.max_restarts > 0) {
    text += ", attempt " + std::to_string(result.attempt + 1) + " of " +
            std::to_string(result.max_restarts + 1);
  }
  text += "\n" + hint_for(cause);
  if (!cause.message.empty()) {
    text += "  its error file:\n" + indented(cause.message);
  }
  if (cause.last_lines.empty()) {
    return text + "  it wrote nothing to stderr\n";
  }
  text += "  its last lines on stderr:\n";
  for (const auto& line : cause.last_lines) {
    text += indented(line);
  }
  return text;
}

std::string other_text(const WorkerExit& exit) {
  std::string text = "    rank " + std::to_string(exit.rank) + " (pid " +
                     std::to_string(exit.pid) + "): " + exit.status.text();
  if (exit.asked_by != 0) {
    text += ", stopped by ddprun";
    if (exit.status.signal != exit.asked_by) {
      text += " (" + signal_name(exit.asked_by) + ")";
    }
  } else if (!exit.status.is_success()) {
    text += ", after the first failure";
  }
  return text + "\n";
}

std::string others_text(const AttemptResult& result, const WorkerExit* cause) {
  std::string text;
  for (const WorkerExit& exit : result.exits) {
    if (&exit != cause) {
      text += other_text(exit);
    }
  }
  for (const Survivor& survivor : result.survivors) {
    text += "    rank " + std::to_string(survivor.rank) + " (pid " +
            std::to_string(survivor.pid) +
            "): still there after SIGKILL; the kernel holds it (a driver or a "
            "file server that does not answer)\n";
  }
  return text.empty() ? "" : "  the other workers:\n" + text;
}

const WorkerExit* find_cause(const AttemptResult& result) {
  const auto found = std::find_if(
      result.exits.begin(), result.exits.end(), [](const WorkerExit& exit) {
        return !exit.status.is_success() && exit.asked_by == 0;
      });
  return found == result.exits.end() ? nullptr : &*found;
}

}  // namespace

std::string describe_failure(const WorkerExit& exit) {
  return "rank " + std::to_string(exit.rank) +
         " failed first: " + (exit.status.signal != 0 ? "killed by " : "") +
         exit.status.text();
}

Report make_report(const AttemptResult& result) {
  const WorkerExit* cause =
      result.stop_signal != 0 ? nullptr : find_cause(result);
  if (cause != nullptr) {
    return {
        "ddprun: " + cause_text(result, *cause) + others_text(result, cause),
        cause->status.shell_code()};
  }
  if (result.stop_signal != 0) {
    return {"ddprun: stopped by " + signal_name(result.stop_signal) + "\n" +
                others_text(result, nullptr),
            128 + result.stop_signal};
  }
  return {};
}

}  // namespace launcher
