#pragma once

#include "launcher/doctor/machine.h"

// Facts about machines for the diagnosis.
namespace launcher::test {

inline constexpr int64_t kMebi = int64_t{1} << 20;
inline constexpr int64_t kGibi = int64_t{1} << 30;

/// A machine without faults: no GPU, 64 CPUs on two NUMA nodes.
inline MachineFacts sound_machine() {
  MachineFacts machine;
  machine.network.host = {"node7", "", {{"10.0.0.7", true, false}}};
  SystemFacts& system = machine.system;
  system.cpu_count = 64;
  for (int cpu = 0; cpu < 64; ++cpu) {
    system.topology.cpus.push_back({cpu, cpu, cpu, cpu / 32, cpu / 32});
  }
  system.shared_memory_bytes = 16 * kGibi;
  system.free_shared_memory_bytes = 16 * kGibi;
  system.open_files = 65536;
  system.most_open_files = 1048576;
  machine.all_reduce = {.is_installed = true,
                        .path = "/opt/bin/ddprun-allreduce",
                        .error = "",
                        .libtorch = "2.11.0",
                        .backend = "gloo",
                        .ranks = 4,
                        .bytes = 16 * kMebi,
                        .seconds = 0.01};
  return machine;
}

/// A machine without faults and with 8 GPUs on two nodes, behind an NVSwitch.
inline MachineFacts gpu_machine() {
  MachineFacts machine = sound_machine();
  GpuFacts& gpu = machine.gpu;
  gpu.device_files = 8;
  gpu.has_nvidia_smi = true;
  gpu.driver = "580.65.06";
  gpu.cuda = 13000;
  for (int index = 0; index < 8; ++index) {
    const std::string number = std::to_string(index);
    gpu.gpus.push_back({"NVIDIA H200",
                        "GPU-" + number + "abc",
                        "0000:" + number + "b:00.0",
                        141 * kGibi,
                        index / 4,
                        index < 4 ? "0-31" : "32-63"});
  }
  gpu.links.assign(8, std::vector<std::string>(8, "NV18"));
  machine.all_reduce.cuda = 13000;
  machine.all_reduce.nccl = 22809;
  machine.all_reduce.nccl_built = 22809;
  machine.all_reduce.devices = 8;
  machine.all_reduce.backend = "nccl";
  machine.all_reduce.ranks = 8;
  return machine;
}

}  // namespace launcher::test
