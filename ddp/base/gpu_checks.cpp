#include "ddp/base/gpu_checks.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace ddp::detail {
namespace {

/// The kernel asks the cgroup of devices here, too.
bool is_denied(const std::string& path) {
  return ::faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) != 0 &&
         (errno == EPERM || errno == EACCES);
}

}  // namespace

bool names_a_gpu(std::string_view entry) {
  const auto begins_with = [entry](std::string_view prefix) {
    return entry.substr(0, prefix.size()) == prefix;
  };
  return begins_with("GPU-") || begins_with("MIG-") ||
         (!entry.empty() && entry[0] >= '0' && entry[0] <= '9');
}

bool is_gpu_file(std::string_view file_name) {
  constexpr std::string_view kPrefix = "nvidia";
  if (file_name.substr(0, kPrefix.size()) != kPrefix) {
    return false;
  }
  const auto digits = file_name.substr(kPrefix.size());
  return !digits.empty() &&
         std::all_of(digits.begin(), digits.end(), [](char c) {
           return c >= '0' && c <= '9';
         });
}

int count_gpu_files(const std::string& folder) {
  int count = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()),
                                                    ::closedir);
  while (const dirent* entry = entries ? ::readdir(entries.get()) : nullptr) {
    const std::string name = entry->d_name;
    count += is_gpu_file(name) && !is_denied(folder + "/" + name) ? 1 : 0;
  }
  return count;
}

std::string unseen_gpus_problem(int files,
                                const char* visible,
                                const std::string& reason) {
  if (files == 0 || (visible != nullptr && !names_a_gpu(visible))) {
    return "";
  }
  return "Expected LibTorch to see a GPU, because this host has " +
         std::to_string(files) +
         " (/dev/nvidia0 ...), but it sees none: " + reason +
         ". `ddprun --doctor` looks for the cause. To train on the CPU, choose "
         "backend \"gloo\", or set CUDA_VISIBLE_DEVICES to nothing";
}

std::string nccl_header_problem(uint64_t built, int major, int minor) {
  const auto built_major = static_cast<int>(built >> 32);
  const auto built_minor = static_cast<int>((built >> 16) & 0xffff);
  if (built_major == major && built_minor == minor) {
    return "";
  }
  const auto text = [](int first, int second) {
    return std::to_string(first) + "." + std::to_string(second);
  };
  return "Expected ddp to be compiled with nccl.h of NCCL " +
         text(built_major, built_minor) +
         ", with which LibTorch was built, but it was with that of NCCL " +
         text(major, minor) +
         ": build ddp again with -DDDP_NCCL_INCLUDE_DIR=<folder of the "
         "former>, "
         "which PyPI's packages nvidia-nccl-cu12 and nvidia-nccl-cu13 have";
}

}  // namespace ddp::detail
