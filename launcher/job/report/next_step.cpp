#include "launcher/job/report/next_step.h"

#include <string_view>
#include <variant>

#include "launcher/job/report/failure_text.h"
#include "launcher/workers/error_file.h"

namespace launcher {
namespace {

constexpr std::string_view kDoctorOfHosts =
    "ddprun --doctor on each host, with its command line, tests names and "
    "ports; ddprun-allreduce in the program's place tests the connections";
constexpr std::string_view kDoctorOfGpus =
    "ddprun --doctor with this command line compares GPUs, driver, CUDA and "
    "LibTorch";

constexpr std::string_view kMoreMemory =
    "fewer workers on this host, or more memory for the job";

/// A text of the first failed worker, and the step that helps. The first row
/// that fits wins.
struct Row {
  std::string_view text;
  std::string_view step;
};

constexpr Row kRows[] = {
    {"CUDA out of memory",
     "a smaller batch, ddp::checkpoint_activations, mixed precision or a "
     "ddp::ZeroRedundancyOptimizer takes less of the GPU's memory"},
    {"no kernel image is available", kDoctorOfGpus},
    {"CUDA driver version is insufficient", kDoctorOfGpus},
    {"no CUDA-capable device", kDoctorOfGpus},
    {"invalid device ordinal", kDoctorOfGpus},
    {"collective operation timeout",
     "--hang-timeout=SECONDS ends such a job earlier, and shows where each "
     "rank waits"},
    {"NCCL error",
     "ddprun --doctor with this command line checks GPUs and NCCL, "
     "ddprun-allreduce in the program's place the connections between hosts; "
     "NCCL_DEBUG=INFO shows NCCL's own messages"},
    {"Address already in use",
     "another --master-port, or --standalone on one host, which takes a free "
     "port"},
    {"Connection refused", kDoctorOfHosts},
    {"timed out after", kDoctorOfHosts},
    {"No route to host", kDoctorOfHosts},
    {"Network is unreachable", kDoctorOfHosts},
    {"Name or service not known", kDoctorOfHosts},
    {"name resolution", kDoctorOfHosts},
    {"Unable to find address for", kDoctorOfHosts},
    {"error while loading shared libraries",
     "ldd PROGRAM shows the libraries that are missing; LD_LIBRARY_PATH, or "
     "the RUNPATH of the program, names their folders"},
    {"Too many open files",
     "ulimit -n in the shell that starts ddprun raises the limit; ddprun "
     "--doctor names the number that the job needs"},
    {"No space left on device",
     "df shows the file system that is full; --log-dir and TMPDIR choose "
     "another one"},
    {"Cannot allocate memory", kMoreMemory},
    {"std::bad_alloc", kMoreMemory},
};

/// Returns the message and the last lines of a worker.
std::string words_of(const WorkerExit& exit) {
  std::string words = message_of_error_file(exit.error);
  for (const std::string& line : exit.last_lines) {
    words += "\n" + line;
  }
  return words;
}

std::string_view step_after(const WorkerExit& exit,
                            const WorkersResult& workers) {
  const std::string words = words_of(exit);
  for (const Row& row : kRows) {
    if (words.find(row.text) != std::string::npos) {
      return row.step;
    }
  }
  return workers.oom_kills > 0 ? kMoreMemory : "";
}

std::string_view step_of(const AttemptResult& result) {
  if (const WorkerExit* first = first_failure(result)) {
    return step_after(*first, result.workers);
  }
  const auto* broken = std::get_if<WorldBroken>(&result.cause);
  return broken != nullptr && broken->change == WorldBroken::Change::vanished
             ? kDoctorOfHosts
             : "";
}

}  // namespace

std::string next_step(const AttemptResult& result) {
  const std::string_view step = step_of(result);
  return step.empty() ? "" : "  next: " + std::string(step) + "\n";
}

}  // namespace launcher
