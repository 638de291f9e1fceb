#include "samples/support/device_list.h"

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>
#include <string_view>

namespace samples {
namespace {

constexpr std::string_view kCuda = "cuda:";

// The number of a whole text, if it is one.
std::optional<int> parse_number(std::string_view text) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, number);
  const bool is_number = error == std::errc{} && next == end && number >= 0;
  return is_number ? std::optional<int>(number) : std::nullopt;
}

}  // namespace

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

void add_devices_option(CLI::App& app,
                        std::vector<std::string>& names,
                        const std::string& without) {
  app.add_option("--devices",
                 names,
                 "One for each replica: cuda:0,cuda:1 or 0,1, or cpu, which "
                 "may be named several times (" +
                     without + ")")
      ->delimiter(',');
}

std::vector<c10::Device> parse_devices(const std::vector<std::string>& names,
                                       int gpu_count) {
  std::vector<c10::Device> devices;
  for (const auto& name : names) {
    devices.push_back(parse_device(name, gpu_count));
  }
  return devices;
}

std::vector<c10::Device> devices_or_gpus(const std::vector<std::string>& names,
                                         int gpu_count) {
  auto devices = parse_devices(names, gpu_count);
  for (int gpu = 0; names.empty() && gpu < gpu_count; ++gpu) {
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  }
  return devices;
}

std::vector<c10::Device> devices_or_several(
    const std::vector<std::string>& names, int gpu_count) {
  auto devices = devices_or_gpus(names, gpu_count);
  if (names.empty() && devices.size() < 2) {
    devices.assign(3, c10::kCPU);
  }
  return devices;
}

}  // namespace samples
