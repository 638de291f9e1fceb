#include <algorithm>

#include "launcher/base/text.h"
#include "launcher/doctor/diagnose.h"
#include "launcher/doctor/finding.h"

namespace launcher {
namespace {

Finding diagnose_cpus(const SystemFacts& system, const JobShape& job) {
  const std::string text = count_text(job.workers, "worker") + " on " +
                           count_text(system.cpu_count, "CPU");
  return job.workers > system.cpu_count
             ? warning("CPUs",
                       text + ": they take each other's time",
                       "start at most --nproc-per-node=" +
                           std::to_string(system.cpu_count) +
                           ", or allow more CPUs (affinity, cgroup quota)")
             : all_well("CPUs", text);
}

/// Memory that a worker with LibTorch uses before it allocates any data.
constexpr int64_t kLeastMemory = int64_t{512} << 20;

Finding diagnose_memory(const SystemFacts& system, const JobShape& job) {
  const std::string text =
      bytes_text(system.free_memory_bytes) + " of " +
      bytes_text(system.memory_bytes) + " free" +
      (system.is_memory_of_cgroup ? " (the cgroup's limit)" : "");
  if (system.free_memory_bytes < kLeastMemory * job.workers) {
    return warning("memory",
                   text + " for " + count_text(job.workers, "worker") +
                       ", and each takes some " + bytes_text(kLeastMemory) +
                       " before its model",
                   system.is_memory_of_cgroup
                       ? "start fewer, or raise the limit (docker --memory, "
                         "the batch system's options)"
                       : "start fewer, or end what else runs");
  }
  return all_well("memory", text);
}

/// NVIDIA recommends 1 GiB for a container; this value is equal for 8 GPUs.
constexpr int64_t kSharedMemoryOfWorker = int64_t{128} << 20;

Finding diagnose_shared_memory(const MachineFacts& machine,
                               const JobShape& job) {
  const SystemFacts& system = machine.system;
  const std::string subject = "shared memory";
  const bool has_nccl = visible_gpu_count(machine) > 0 && job.workers > 1;
  const std::string fix =
      "start the container with --shm-size=" +
      std::to_string(kSharedMemoryOfWorker * job.workers >> 20) +
      "m or more, or mount a larger tmpfs there";
  if (!system.free_shared_memory_bytes || !system.shared_memory_bytes) {
    return has_nccl ? warning(subject, "there is no /dev/shm for NCCL", fix)
                    : all_well(subject, "no /dev/shm, which Gloo does not use");
  }
  const std::string text = bytes_text(*system.free_shared_memory_bytes) +
                           " of " + bytes_text(*system.shared_memory_bytes) +
                           " free in /dev/shm";
  return has_nccl && *system.free_shared_memory_bytes <
                         kSharedMemoryOfWorker * job.workers
             ? warning(subject,
                       text + ", where NCCL connects " +
                           count_text(job.workers, "worker"),
                       fix)
             : all_well(subject, text);
}

/// Returns the number of descriptors that rank 0 needs, more than any other
/// rank: for the store, the ControlChannel's connections and Gloo, per rank,
/// and for the program's own files.
uint64_t files_of_rank0(const JobShape& job) {
  return 64 + 4 * static_cast<uint64_t>(job.workers) *
                  static_cast<uint64_t>(job.hosts);
}

/// Returns the number of descriptors that ddprun needs, five per worker. ddprun
/// raises its limit to the hard limit, see CallerSettings.
uint64_t files_of_ddprun(const JobShape& job) {
  return 32 + 5 * static_cast<uint64_t>(job.workers);
}

Finding diagnose_open_files(const SystemFacts& system, const JobShape& job) {
  const std::string subject = "open files";
  const std::string limits = std::to_string(system.open_files) + " (hard " +
                             std::to_string(system.most_open_files) + ")";
  const uint64_t rank0 = files_of_rank0(job);
  const uint64_t most = std::max(rank0, files_of_ddprun(job));
  if (most > system.most_open_files) {
    return failing(subject,
                   "at most " + limits + ", but this job takes some " +
                       std::to_string(most),
                   "raise the hard limit (/etc/security/limits.conf, "
                   "LimitNOFILE=, docker --ulimit nofile=65536)");
  }
  if (rank0 > system.open_files) {
    return failing(subject,
                   "at most " + limits + ", but rank 0 takes some " +
                       std::to_string(rank0),
                   "run `ulimit -n " + std::to_string(system.most_open_files) +
                       "` in the shell that starts ddprun");
  }
  return all_well(subject, "at most " + limits);
}

Finding diagnose_cgroup(const SystemFacts& system) {
  return all_well(
      "cgroup",
      system.has_job_cgroup
          ? "ddprun may make one, and ends a job's processes by it"
          : "ddprun may make none, and finds a job's processes one by one");
}

Finding diagnose_temporary(const SystemFacts& system) {
  const std::string& folder = system.temporary_folder;
  if (!system.temporary_error.empty()) {
    return warning("temporary files",
                   folder + " cannot be written to (" + system.temporary_error +
                       "), so workers may have no error file",
                   "set TMPDIR to a folder of yours");
  }
  return all_well("temporary files", "in " + folder);
}

}  // namespace

Findings diagnose_system(const MachineFacts& machine, const JobShape& job) {
  const SystemFacts& system = machine.system;
  return {diagnose_cpus(system, job),
          diagnose_memory(system, job),
          diagnose_shared_memory(machine, job),
          diagnose_open_files(system, job),
          diagnose_cgroup(system),
          diagnose_temporary(system)};
}

}  // namespace launcher
