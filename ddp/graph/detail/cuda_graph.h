#pragma once

#include <memory>

namespace ddp::detail {

/// A CUDA graph of the work that the current stream gets between `begin` and
/// `end`, also from autograd's threads. Only calls of the recording thread that
/// CUDA cannot record end the recording; other threads may use CUDA.
///
/// Memory that is allocated while recording belongs to the graph: other tensors
/// never get it, and each launch writes it again.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
  /// Begins to record, on a stream that is not the default one.
  virtual void begin() = 0;
  /// @throws c10::Error if CUDA could not record a call.
  virtual void end() = 0;
  /// Ends a recording that has failed, so that the stream, the allocator and
  /// the random generator work as before.
  virtual void abandon() noexcept = 0;
  /// Queues the work on the current stream.
  virtual void launch() = 0;
};

/// @throws c10::Error if LibTorch has no CUDA.
std::unique_ptr<CudaGraph> make_cuda_graph();

}  // namespace ddp::detail
