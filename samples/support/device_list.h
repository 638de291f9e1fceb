#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace samples {

/// Adds --devices, a list of names. `without` says in the help what happens
/// when it is not given.
void add_devices_option(CLI::App& app,
                        std::vector<std::string>& names,
                        const std::string& without);

/// Pure: the device of this name: "cpu", or "cuda:1" or "1" for GPU 1.
/// `gpu_count` is how many GPUs LibTorch sees.
///
/// @throws c10::Error when the name is none of these, or the GPU is not there.
c10::Device parse_device(const std::string& name, int gpu_count);

/// Pure: the devices of these names.
///
/// Example:
/// @code
///   samples::parse_devices({"cuda:0", "1"}, torch::cuda::device_count());
/// @endcode
std::vector<c10::Device> parse_devices(const std::vector<std::string>& names,
                                       int gpu_count);

/// Pure: the devices of these names; without a name all GPUs there are.
std::vector<c10::Device> devices_or_gpus(const std::vector<std::string>& names,
                                         int gpu_count);

/// Pure: the devices of these names; without a name all GPUs where there are
/// two or more, else the CPU three times.
std::vector<c10::Device> devices_or_several(
    const std::vector<std::string>& names, int gpu_count);

}  // namespace samples
