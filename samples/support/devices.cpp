#include "samples/support/devices.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/cuda.h>

#include <charconv>
#include <set>
#include <string_view>

namespace samples {
namespace {

constexpr std::string_view kCuda = "cuda:";

// Parses a text that consists of a number, or returns std::nullopt.
std::optional<int> parse_number(std::string_view text) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, number);
  const bool is_number = error == std::errc{} && next == end && number >= 0;
  return is_number ? std::optional<int>(number) : std::nullopt;
}

// Returns the GPU of --gpus for this rank.
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

void add_device_options(CommandLine& line, DeviceOptions& device) {
  line.add("--backend",
           device.backend,
           "nccl or gloo (nccl where there is a GPU)")
      .one_of({"nccl", "gloo"});
  line.add("--gpus",
           device.gpus,
           "GPU ids, one for each rank of this host (0,1,..)");
  line.add("--no-cuda", device.no_cuda, "Compute on the CPU, with gloo")
      .excludes("--gpus");
}

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

void init_process_group(const DeviceOptions& options) {
  ddp::init_process_group(
      process_group_options(options, ddp::WorkerEnv::read(), gpu_count()));
}

void synchronize(c10::Device device) {
  if (device.is_cuda()) {
    torch::cuda::synchronize(device.index());
  }
}

int gpu_count() {
  return static_cast<int>(torch::cuda::device_count());
}

void add_devices_option(CommandLine& line,
                        std::vector<std::string>& names,
                        const std::string& without) {
  line.add("--devices",
           names,
           "One for each replica: cuda:0,cuda:1 or 0,1, or cpu, which may be "
           "named several times (" +
               without + ")");
}

c10::Device parse_device(const std::string& name, int gpu_count) {
  if (name == "cpu") {
    return c10::kCPU;
  }
  std::string_view number = name;
  if (number.starts_with(kCuda)) {
    number.remove_prefix(kCuda.size());
  }
  const auto gpu = parse_number(number);
  TORCH_CHECK(gpu.has_value(),
              "Expected cpu, cuda:N or N in --devices, but got ",
              name,
              ".");
  TORCH_CHECK(*gpu < gpu_count,
              "Expected GPUs below ",
              gpu_count,
              " in --devices, the number that LibTorch sees, but got ",
              name,
              ". Check the driver and CUDA_VISIBLE_DEVICES, or use --devices "
              "cpu,cpu.");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(*gpu)};
}

std::vector<c10::Device> devices_or_several(
    const std::vector<std::string>& names, int gpu_count) {
  std::vector<c10::Device> devices;
  for (const auto& name : names) {
    devices.push_back(parse_device(name, gpu_count));
  }
  if (!names.empty()) {
    return devices;
  }
  if (gpu_count < 2) {
    return std::vector<c10::Device>(3, c10::kCPU);
  }
  for (int gpu = 0; gpu < gpu_count; ++gpu) {
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  }
  return devices;
}

}  // namespace samples
