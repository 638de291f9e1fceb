#include "samples/support/device.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <set>

namespace samples {
namespace {

// The GPU of --gpus that belongs to this rank.
int choose_gpu(const std::vector<int>& gpus,
               const ddp::WorkerEnv& env,
               int gpu_count) {
  const auto given = c10::Join(",", gpus);
  TORCH_CHECK(gpus.size() == static_cast<size_t>(env.local_world_size),
              "Expected one id in --gpus for each of ",
              env.local_world_size,
              " ranks on this host, but got ",
              given,
              ". Start one rank a GPU with ddprun --nproc-per-node=",
              gpus.size(),
              ".");
  TORCH_CHECK(std::set<int>(gpus.begin(), gpus.end()).size() == gpus.size(),
              "Expected different ids in --gpus, but got ",
              given,
              ".");
  for (const int gpu : gpus) {
    TORCH_CHECK(gpu >= 0 && gpu < gpu_count,
                "Expected ids below ",
                gpu_count,
                " in --gpus, the number of GPUs that LibTorch sees, but got ",
                gpu,
                ". Check the driver and CUDA_VISIBLE_DEVICES, or use "
                "--no-cuda.");
  }
  return gpus[static_cast<size_t>(env.local_rank)];
}

}  // namespace

ddp::ProcessGroupOptions process_group_options(const DeviceOptions& options,
                                               const ddp::WorkerEnv& env,
                                               int gpu_count) {
  ddp::ProcessGroupOptions result;
  result.worker_env(env).backend(options.backend);
  if (options.no_cuda) {
    result.backend("gloo").device(c10::Device(c10::kCPU));
  } else if (!options.gpus.empty()) {
    const int gpu = choose_gpu(options.gpus, env, gpu_count);
    result.device(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu)));
  }
  return result;
}

}  // namespace samples
