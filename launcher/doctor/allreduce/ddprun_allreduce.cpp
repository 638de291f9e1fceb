// Times an all-reduce over the ranks of a job, checks its sums, and writes the
// results and the versions of LibTorch's libraries as lines "NAME VALUE".
// ddprun --doctor starts it for the workers of one host. By hand it tests
// several hosts, with the size in MiB (default: 256 on GPUs, else 16):
//
//   ddprun --nnodes=2 ... --nproc-per-node=8 ddprun-allreduce 64
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/cuda.h>
#include <torch/types.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <sstream>

#include "ddp/base/text/number.h"
#include "ddp/job/collectives.h"
#include "ddp/job/process_group.h"
#include "launcher/doctor/allreduce/nccl_versions.h"

namespace launcher {
namespace {

// A missing rank would otherwise block the others for half an hour.
constexpr std::chrono::minutes kPatience{1};

bool is_first() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr || std::string(rank) == "0";
}

/// Writes the text at once: the ranks share a stream.
void write(const std::ostringstream& text) {
  std::cout << text.str() << std::flush;
}

void write_versions() {
  const auto& cuda = at::detail::getCUDAHooks();
  const NcclVersions nccl = nccl_versions();
  std::ostringstream text;
  text << "libtorch " << TORCH_VERSION << "\n"
       << "cuda " << (cuda.hasCUDART() ? cuda.versionCUDART() : 0) << "\n"
       << "nccl " << nccl.loaded << "\nnccl_built " << nccl.built << "\n"
       << "devices " << static_cast<int>(torch::cuda::device_count()) << "\n";
  write(text);
}

/// Returns the seconds of one all-reduce over all ranks, including the wait for
/// the result.
double timed_all_reduce(torch::Tensor& tensor) {
  using Clock = std::chrono::steady_clock;
  tensor.fill_(ddp::rank() + 1);
  ddp::barrier();
  const auto begin = Clock::now();
  std::vector<torch::Tensor> tensors{tensor};
  ddp::process_group()->allreduce(tensors)->wait();
  tensor[0].item<float>();  // waits for the GPU
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void check_sums(const torch::Tensor& tensor) {
  const double world = ddp::world_size();
  const double expected = world * (world + 1) / 2;
  const double least = tensor.min().item<double>();
  const double most = tensor.max().item<double>();
  TORCH_CHECK(least == expected && most == expected,
              "Expected all sums of the ranks' numbers to be ",
              expected,
              ", but got ",
              least,
              " to ",
              most);
}

void all_reduce(std::optional<int64_t> mebibytes) {
  constexpr int kWarmUps = 2;  // the first run opens connections
  std::array<double, 5> seconds{};
  const auto device = ddp::local_device();
  const int64_t bytes = mebibytes.value_or(device.is_cuda() ? 256 : 16) << 20;
  auto tensor = torch::zeros({bytes / int64_t{sizeof(float)}}, device);
  for (int run = 0; run < kWarmUps; ++run) {
    timed_all_reduce(tensor);
  }
  for (double& each : seconds) {
    each = timed_all_reduce(tensor);
    check_sums(tensor);
  }
  std::sort(seconds.begin(), seconds.end());
  if (ddp::rank() == 0) {
    const double median = seconds[seconds.size() / 2];
    const double ranks = ddp::world_size();
    std::ostringstream text;
    text << "backend " << ddp::process_group()->getBackendName() << "\nranks "
         << ddp::world_size() << "\nbytes " << bytes << "\nseconds " << median
         << "\nbus_gb_per_second "
         << 2 * (ranks - 1) / ranks * static_cast<double>(bytes) / median / 1e9
         << "\n";
    write(text);
  }
}

/// Returns the first line of an error message, without the stack.
std::string first_line_of(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Returns the size from the command line; std::nullopt without an argument.
std::optional<int64_t> size_in(int argc, char** argv) {
  if (argc < 2) {
    return std::nullopt;
  }
  const auto size = ddp::detail::parse_number<int64_t>(argv[1]);
  TORCH_CHECK(argc == 2 && size && *size >= 1 && *size <= 65536,
              "Expected one argument, a size from 1 to 65536 MiB, but got ",
              argv[argc - 1]);
  return size;
}

int run(int argc, char** argv) {
  try {
    const auto mebibytes = size_in(argc, argv);
    if (is_first()) {
      write_versions();
    }
    ddp::init_process_group(
        ddp::ProcessGroupOptions().timeout(kPatience).connect_timeout(
            kPatience));
    all_reduce(mebibytes);
    ddp::destroy_process_group();
    return 0;
  } catch (const std::exception& error) {
    std::ostringstream text;
    text << "error " << first_line_of(error.what()) << "\n";
    write(text);
    return 1;
  }
}

}  // namespace
}  // namespace launcher

int main(int argc, char** argv) {
  return launcher::run(argc, argv);
}
