#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::test {

/// A rank in a thread of this process, with its own GPU and NCCL backend.
struct NcclRank {
  int rank = 0;
  int size = 1;
  c10::Device device = c10::Device(c10::kCUDA, 0);
  c10::intrusive_ptr<c10d::Backend> group;
  /// Blocks until all ranks have called this function, without a collective.
  std::function<void()> meet;

  /// Returns a stream of the rank's GPU from LibTorch's pool.
  c10::Stream new_stream() const;

  /// Checks a condition. Catch2's own checks work in the main thread only.
  /// @throws std::runtime_error with the text `what` if the condition is false.
  void expect(bool condition, const std::string& what) const;
  /// Same as `expect`, for two tensors that must be close, on any devices.
  void expect_close(const at::Tensor& got,
                    const at::Tensor& expected,
                    const std::string& what) const;
};

/// Runs `body` once on each of `size` ranks. Returns the error text of each
/// rank, or "". If one rank throws, the backends of all ranks are aborted, so
/// that no rank waits for it. Ranks that still run after two minutes end the
/// program.
std::vector<std::string> try_nccl_ranks(
    int size, const std::function<void(const NcclRank&)>& body);

/// Same as above, but throws the first error of any rank.
void run_nccl_ranks(int size, const std::function<void(const NcclRank&)>& body);

/// Returns false and prints a warning if there are fewer than `count` GPUs.
bool has_gpus(int count);

}  // namespace ddp::test
