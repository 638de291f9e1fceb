#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::detail {

/// The name is that of a GPU's device file: "nvidia0" is, "nvidiactl" is not.
/// Pure.
bool is_gpu_file(std::string_view file_name);

/// Counts the device files of GPUs. NVIDIA's kernel driver makes one for each
/// GPU, whatever CUDA and LibTorch see of it.
int count_gpu_files(const std::string& folder = "/dev");

/// Counts those that this process may open: a scheduler denies a job the GPUs
/// that it has not asked for. May take seconds, as it wakes GPUs.
int count_allowed_gpu_files(const std::string& folder = "/dev");

/// Why a rank must not train on the CPU although LibTorch sees no GPU, or "".
/// The host has GPUs, and nobody has hidden them. Pure.
///
/// @param files    as count_allowed_gpu_files() counts them
/// @param visible  CUDA_VISIBLE_DEVICES, or null where it is not set; all GPUs
///                 are hidden where its first entry names none (it is empty,
///                 "-1", Slurm's "NoDevFiles")
/// @param reason   why LibTorch sees none
std::string unseen_gpus_problem(int files,
                                const char* visible,
                                const std::string& reason);

/// Why ProcessGroupNCCL cannot be used with the nccl.h that ddp was compiled
/// with, or "". LibTorch's code writes a struct whose memory ddp's code
/// allocates, and NCCL's minor versions change its size. Pure.
///
/// @param built  torch::cuda::nccl::version(): the version LibTorch was built
/// with
/// @param major,minor  of ddp's nccl.h
std::string nccl_header_problem(uint64_t built, int major, int minor);

}  // namespace ddp::detail
