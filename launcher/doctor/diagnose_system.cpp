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

}  // namespace

Findings diagnose_system(const MachineFacts& machine, const JobShape& job) {
  const SystemFacts& system = machine.system;
  return {diagnose_cpus(system, job),
          diagnose_shared_memory(machine, job),
          diagnose_open_files(system, job)};
}

}  // namespace launcher
