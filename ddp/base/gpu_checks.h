#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::detail {

/// Pure: returns true for the name of a GPU's device file: "nvidia0" is one,
/// "nvidiactl" is not.
bool is_gpu_file(std::string_view file_name);

/// Counts the device files of GPUs that this process may open: a scheduler
/// denies a job access to GPUs that it has not requested. NVIDIA's kernel
/// driver creates a file for each GPU, even if CUDA and LibTorch do not see the
/// GPU. Opens no file, because that would wake the GPU.
int count_gpu_files(const std::string& folder = "/dev");

/// Pure: whether an entry of CUDA_VISIBLE_DEVICES can be a GPU. CUDA ignores
/// all entries from the first one that is no GPU (empty, "-1", Slurm's
/// "NoDevFiles").
bool names_a_gpu(std::string_view entry);

/// Pure: returns an error if training on the CPU is probably a mistake, or "".
/// The error is that the host has GPUs that LibTorch does not see although
/// CUDA_VISIBLE_DEVICES does not hide them.
///
/// @param files  result of count_gpu_files().
/// @param visible  CUDA_VISIBLE_DEVICES, or null if it is not set. All GPUs are
///   hidden if its first entry is no GPU.
/// @param reason  why LibTorch sees no GPU.
std::string unseen_gpus_problem(int files,
                                const char* visible,
                                const std::string& reason);

/// Pure: returns why ProcessGroupNCCL cannot be used with the nccl.h that ddp
/// was compiled with, or "". LibTorch's code writes a struct that ddp's code
/// allocates, and its size differs between NCCL's minor versions.
///
/// @param built  torch::cuda::nccl::version(): the version that LibTorch was
///   built with.
/// @param major,minor  version of ddp's nccl.h.
std::string nccl_header_problem(uint64_t built, int major, int minor);

}  // namespace ddp::detail
