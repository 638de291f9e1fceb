#include <torch/cuda.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdio>

#include "ddp/job/process_group.h"
#include "test/gpu/two_ranks.h"

namespace ddp::test {
namespace {

using torch::Tensor;

/// Time after which the other rank must have heard of a fault.
constexpr std::chrono::minutes kPatience{5};

void step_until_error(Known& known) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    known.step();
    torch::cuda::synchronize();
  }
  expect(false, "no fault has ended the training");
}

/// Trains. Rank 1 calls `fault` after some steps, which throws or makes the
/// next step throw.
void train_until(const std::function<void()>& fault) {
  join();
  Known known;
  for (int step = 0; step < 3; ++step) {
    known.step();
  }
  expect(known.is_right(), "wrong gradients before the fault");
  std::printf("rank %d trains\n", rank());
  std::fflush(stdout);
  if (rank() == 1) {
    known.step();
    fault();
  }
  step_until_error(known);
}

}  // namespace

void share_a_gpu() {
  init_process_group(
      ProcessGroupOptions().backend("nccl").device(c10::Device("cuda:0")));
}

void train_on() {
  train_until([] {});
}

void run_out_of_memory() {
  train_until([] { torch::empty({int64_t{1} << 50}, local_device()); });
}

void fail_on_device() {
  train_until([] {
    const auto outside = torch::full(
        {1}, 1000, torch::dtype(torch::kLong).device(local_device()));
    torch::ones({2}, local_device()).index({outside}).cpu();
  });
}

void abort_group() {
  train_until([] { process_group()->abort(); });
}

}  // namespace ddp::test
