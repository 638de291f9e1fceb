#include "ddp/graph/detail/cuda_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace ddp::detail {
namespace {

template <class Work>
void try_to(const Work& work) noexcept {
  try {
    work();
  } catch (const std::exception&) {
    // `work` has ended already.
  }
}

class LibTorchGraph : public CudaGraph, private at::cuda::CUDAGraph {
 public:
  void begin() override {
    capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  }
  void end() override { capture_end(); }
  void launch() override { replay(); }

  /// LibTorch's `capture_end` throws for an invalid recording before it has
  /// ended the recording's part in the allocators and generators.
  void abandon() noexcept override {
    if (capture_ended_) {
      return;
    }
    try_to([this] { capture_end(); });
    if (capture_ended_) {
      return;
    }
    end_parts(*this);
  }

 private:
  /// Newer releases of LibTorch do this in the destructor.
  template <class Graph>
  static void end_parts(Graph& graph) noexcept {
    if constexpr (!requires { graph.capturing_to_pool_; }) {
      try_to([&] {
        c10::cuda::CUDACachingAllocator::endAllocateToPool(graph.capture_dev_,
                                                           graph.mempool_id_);
      });
      try_to([&] {
        at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(
            graph.mempool_id_);
      });
      for (auto& [state, increment] : graph.captured_generator_states_) {
        state->capturing_ = false;
      }
      graph.capture_ended_ = true;  // the destructor releases the memory
    }
  }
};

}  // namespace

std::unique_ptr<CudaGraph> make_cuda_graph() {
  return std::make_unique<LibTorchGraph>();
}

}  // namespace ddp::detail
