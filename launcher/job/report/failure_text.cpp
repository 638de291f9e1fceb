#include "launcher/job/report/failure_text.h"

#include <algorithm>
#include <csignal>

#include "ddp/base/text/rank_text.h"
#include "launcher/base/exit_status.h"
#include "launcher/base/text.h"
#include "launcher/workers/error_file.h"

namespace launcher {
namespace {

constexpr size_t kMostMessageBytes = 4000;
constexpr size_t kMostStrangeBytes = 200;

/// Prepends "    | " to each line.
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

std::string hint_for(const WorkerExit& exit, const WorkersResult& workers) {
  if (exit.status.signal == SIGKILL && workers.oom_kills == 0) {
    return "  not killed by ddprun: often the kernel does it when memory is "
           "full (see dmesg), or a batch system at its limits\n";
  }
  if (exit.status.signal == SIGBUS) {
    return "  often a full /dev/shm or a file that became shorter\n";
  }
  return "";
}

std::string hint_about_memory(const WorkersResult& workers) {
  if (workers.oom_kills == 0) {
    return "";
  }
  return "  memory was full: the kernel has killed " +
         std::to_string(workers.oom_kills) +
         (workers.oom_kills == 1 ? " process" : " processes") +
         " in this time in cgroup " + workers.oom_cgroup + "\n";
}

std::string hint_about_gpus(const AttemptResult& result) {
  if (result.gpu_count == 0 || result.worker_count <= result.gpu_count) {
    return "";
  }
  return "  " + std::to_string(result.worker_count) + " workers saw " +
         count_text(result.gpu_count, "GPU") +
         ", so not each had its own; --nproc-per-node=gpu starts one a GPU\n";
}

std::string error_file_text(const WorkerExit& exit) {
  const std::string message = message_of_error_file(exit.error);
  if (!message.empty()) {
    return "  its error file:\n" +
           indented(shortened(message, kMostMessageBytes));
  }
  return exit.error.empty()
             ? ""
             : "  its error file has no message: expected {\"message\": ...}, "
               "but got\n" +
                   indented(shortened(exit.error, kMostStrangeBytes));
}

/// @param has_cause  whether a failure, on any host, ended the attempt
std::string ending_of(const WorkerExit& exit, bool has_cause) {
  std::string text = exit.status.text();
  if (exit.asked_by != 0) {
    text += ", stopped by ddprun";
    if (exit.status.signal != exit.asked_by) {
      text += " (" + signal_name(exit.asked_by) + ")";
    }
  } else if (!exit.status.is_success()) {
    text += has_cause ? ", after the first failure" : ", not by ddprun";
  }
  return text;
}

/// Returns the last stderr lines of a worker that failed after the first
/// failure.
std::string last_stderr_lines(const WorkerExit& exit) {
  constexpr size_t kMostLines = 3;
  std::string text;
  if (exit.asked_by != 0 || exit.status.is_success()) {
    return text;
  }
  const auto& lines = exit.last_lines;
  for (size_t at = lines.size() - std::min(lines.size(), kMostLines);
       at < lines.size();
       ++at) {
    text += "    " + indented(lines[at]);
  }
  return text;
}

/// Workers that ended in the same way.
struct Alike {
  std::string ending;
  std::vector<const WorkerExit*> exits;

  std::string text() const {
    constexpr size_t kMostSingle = 3;
    if (exits.size() > kMostSingle) {
      std::vector<int> ranks;
      for (const WorkerExit* exit : exits) {
        ranks.push_back(exit->rank);
      }
      return "    " + ddp::detail::rank_list(std::move(ranks)) + ": " + ending +
             "\n";
    }
    std::string text;
    for (const WorkerExit* exit : exits) {
      text += "    rank " + std::to_string(exit->rank) + " (pid " +
              std::to_string(exit->pid) + "): " + ending + "\n" +
              last_stderr_lines(*exit);
    }
    return text;
  }
};

std::vector<Alike> grouped(const std::vector<WorkerExit>& exits,
                           const WorkerExit* cause,
                           bool has_cause) {
  std::vector<Alike> groups;
  for (const WorkerExit& exit : exits) {
    if (&exit == cause) {
      continue;
    }
    const std::string ending = ending_of(exit, has_cause);
    const auto group = std::find_if(
        groups.begin(), groups.end(), [&ending](const Alike& known) {
          return known.ending == ending;
        });
    if (group == groups.end()) {
      groups.push_back({ending, {&exit}});
    } else {
      group->exits.push_back(&exit);
    }
  }
  return groups;
}

}  // namespace

std::string attempt_text(const AttemptResult& result) {
  return result.max_restarts > 0
             ? ", attempt " + std::to_string(result.restarts + 1) + " of " +
                   std::to_string(result.max_restarts + 1)
             : "";
}

std::string stderr_text(const WorkerExit& exit) {
  std::string text;
  for (const std::string& line : exit.last_lines) {
    text += indented(line);
  }
  return text.empty() ? "" : "  its last lines on stderr:\n" + text;
}

std::string cause_text(const AttemptResult& result, const WorkerExit& cause) {
  std::string text = describe_failure(cause) + "\n";
  text += "  host " + result.host + ", local rank " +
          std::to_string(cause.local_rank) + ", pid " +
          std::to_string(cause.pid) + ", " + elapsed_text(cause.after) +
          " after its start" + attempt_text(result);
  text += "\n";
  if (result.is_final) {
    text += "  no restart follows this exit code (--final-codes)\n";
  }
  text += hint_for(cause, result.workers) + hint_about_memory(result.workers) +
          hint_about_gpus(result);
  if (!result.logs.empty()) {
    text += "  its files are in " + result.logs + "/" +
            std::to_string(cause.local_rank) + "\n";
  }
  text += error_file_text(cause);
  const std::string last = stderr_text(cause);
  return text + (last.empty() ? "  it wrote nothing to stderr\n" : last);
}

std::string others_text(const AttemptResult& result, const WorkerExit* cause) {
  const bool has_cause = !std::holds_alternative<SignalReceived>(result.cause);
  std::string text;
  for (const Alike& group : grouped(result.workers.exits, cause, has_cause)) {
    text += group.text();
  }
  for (const Survivor& survivor : result.workers.survivors) {
    text +=
        "    rank " + std::to_string(survivor.rank) + " (pid " +
        std::to_string(survivor.pid) +
        (survivor.is_forbidden
             ? "): still there; it is another user's now (setuid, sudo), "
               "whom ddprun may not signal: end it as that user\n"
             : "): still there after SIGKILL; the kernel holds it (a driver "
               "or a file server that does not answer)\n");
  }
  return text.empty() ? ""
                      : std::string("  the ") + (has_cause ? "other " : "") +
                            "workers:\n" + text;
}

const WorkerExit* first_failure(const AttemptResult& result) {
  const auto* cause = std::get_if<WorkerExited>(&result.cause);
  for (const WorkerExit& exit : result.workers.exits) {
    if (cause != nullptr && exit.local_rank == cause->local_rank) {
      return &exit;
    }
  }
  return nullptr;
}

std::string describe_failure(const WorkerExit& exit) {
  return "rank " + std::to_string(exit.rank) +
         " failed first: " + (exit.status.signal != 0 ? "killed by " : "") +
         exit.status.text();
}

}  // namespace launcher
