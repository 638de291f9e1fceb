#include "launcher/base/text.h"
#include "launcher/doctor/diagnose.h"
#include "launcher/doctor/finding.h"

namespace launcher {
namespace {

Finding diagnose_libtorch(const MachineFacts& machine) {
  const AllReduceFacts& facts = machine.all_reduce;
  const GpuFacts& gpu = machine.gpu;
  const std::string libtorch = "LibTorch " + facts.libtorch;
  const std::string subject = "LibTorch";
  if (facts.cuda == 0) {
    return gpu.gpus.empty()
               ? all_well(subject, libtorch + " without CUDA")
               : warning(subject,
                         libtorch + " has no CUDA, so ranks run on CPUs",
                         "build with a LibTorch that has, to use the GPUs");
  }
  const std::string for_cuda = libtorch + " for CUDA " + cuda_text(facts.cuda);
  if (gpu.gpus.empty()) {
    return all_well(subject, for_cuda);
  }
  if (gpu.cuda / 1000 < facts.cuda / 1000) {
    return failing(subject,
                   for_cuda + ", but driver " + gpu.driver +
                       " runs CUDA up to " + cuda_text(gpu.cuda),
                   "install a newer driver, or a LibTorch for CUDA " +
                       std::to_string(gpu.cuda / 1000));
  }
  return all_well(
      subject,
      for_cuda + ", which driver " + gpu.driver +
          (gpu.cuda < facts.cuda
               ? " runs as another " + std::to_string(gpu.cuda / 1000) + ".x"
               : " runs"));
}

Finding diagnose_seen_devices(int seen, int visible) {
  const std::string text = "LibTorch sees " + std::to_string(seen) + " of " +
                           count_text(visible, "GPU");
  return seen >= visible ? all_well("CUDA", text)
                         : failing("CUDA",
                                   text,
                                   "see the findings on GPUs; else look for "
                                   "LD_LIBRARY_PATH with another libcuda.so.1");
}

Finding diagnose_nccl(const AllReduceFacts& facts) {
  const std::string loaded = "NCCL " + nccl_text(facts.nccl);
  if (facts.nccl < facts.nccl_built) {
    return failing("NCCL",
                   loaded + " is loaded, but LibTorch was built for " +
                       nccl_text(facts.nccl_built),
                   "take the other one out of LD_LIBRARY_PATH or LD_PRELOAD, "
                   "so that the one beside LibTorch is found");
  }
  return all_well("NCCL", loaded);
}

Finding diagnose_all_reduce(const AllReduceFacts& facts) {
  const std::string subject = "all-reduce";
  if (!facts.is_installed) {
    return warning(subject,
                   "not tried, and nothing is known of LibTorch: there is no " +
                       facts.path,
                   "install ddp with its libraries (DDP_BUILD_LIBRARY=ON)");
  }
  if (!facts.error.empty()) {
    return failing(subject,
                   facts.error,
                   "start `ddprun --nproc-per-node=N " + facts.path +
                       "` to see all it says, with NCCL_DEBUG=INFO on GPUs");
  }
  const std::string text = count_text(facts.ranks, "rank") + " over " +
                           facts.backend + ": " + bytes_text(facts.bytes) +
                           " in " + decimal_text(facts.seconds * 1e3) + " ms";
  return all_well(subject,
                  facts.ranks > 1
                      ? text + ", " + decimal_text(bus_bandwidth(facts) / 1e9) +
                            " GB/s of bus bandwidth"
                      : text);
}

}  // namespace

Findings diagnose_libraries(const MachineFacts& machine, const JobShape&) {
  const AllReduceFacts& facts = machine.all_reduce;
  Findings findings;
  if (!facts.libtorch.empty()) {
    findings.push_back(diagnose_libtorch(machine));
  }
  if (const int visible = visible_gpu_count(machine);
      facts.cuda > 0 && visible > 0) {
    findings.push_back(diagnose_seen_devices(facts.devices, visible));
  }
  if (facts.nccl > 0) {
    findings.push_back(diagnose_nccl(facts));
  }
  findings.push_back(diagnose_all_reduce(facts));
  return findings;
}

}  // namespace launcher
