#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::test {

/// A rank that is a thread of this process, with a GPU and an NCCL backend of
/// its own.
struct NcclRank {
  int rank = 0;
  int size = 1;
  c10::Device device = c10::Device(c10::kCUDA, 0);
  c10::intrusive_ptr<c10d::Backend> group;
  /// Waits until all ranks have come here, without a collective.
  std::function<void()> meet;

  /// @throws std::runtime_error that says `what` unless the condition holds:
  /// Catch2's own checks belong to the main thread.
  void expect(bool condition, const std::string& what) const;
  /// The same for two tensors that are to be close, wherever they lie.
  void expect_close(const at::Tensor& got,
                    const at::Tensor& expected,
                    const std::string& what) const;
};

/// Runs `body` once on each of `size` ranks. Returns what each rank threw, ""
/// for nothing. When one throws, the backends of all are aborted, so that none
/// waits for it; ranks that still run after two minutes end the program.
std::vector<std::string> try_nccl_ranks(
    int size, const std::function<void(const NcclRank&)>& body);

/// The same, but throws the first error of any rank.
void run_nccl_ranks(int size, const std::function<void(const NcclRank&)>& body);

/// False, with a warning, when there are fewer GPUs.
bool has_gpus(int count);

}  // namespace ddp::test
