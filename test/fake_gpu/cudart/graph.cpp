// Recording and launching of graphs.
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/cudart/error.h"
#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/engine.h"

namespace fake_gpu {
namespace {

/// A graph that can be launched. The operations of each stream of the capture
/// run on a hidden stream, so that the modes and seeds reorder branches.
class Executable {
 public:
  explicit Executable(const Graph& graph) : graph_(graph) {
    for (const Node& node : graph_) {
      Stream*& hidden = hidden_[node.stream];
      if (hidden == nullptr) {
        hidden = create_stream(node.stream->device, Stream::Kind::non_blocking);
      }
    }
  }

  /// Queues all operations behind the operations of `stream` and behind the
  /// last launch. The next operations of `stream` come after them.
  void launch(Stream* stream) {
    enqueue_wait(stream, end_);
    const Point begin = enqueue(stream, "graph begins", nullptr);
    std::map<Stream*, std::vector<Point>> done;
    std::map<Stream*, Past> waited;
    for (const Node& node : graph_) {
      Stream* hidden = hidden_.at(node.stream);
      auto& own = done[node.stream];
      if (own.empty()) {
        enqueue_wait(hidden, begin);
      }
      for (const auto& [other, count] : node.past) {
        size_t& before = waited[node.stream][other];
        if (other != node.stream && count > before) {
          before = count;
          enqueue_wait(hidden, done[other].at(count - 1));
        }
      }
      own.push_back(node.launch(hidden));
    }
    for (const auto& [_, points] : done) {
      enqueue_wait(stream, points.back());
    }
    end_ = enqueue(stream, "graph ends", nullptr);
  }

 private:
  Graph graph_;
  std::map<Stream*, Stream*> hidden_;
  Point end_;  // of the last launch
};

Graph* graph_of(cudaGraph_t handle) {
  return reinterpret_cast<Graph*>(handle);
}

Executable* executable_of(cudaGraphExec_t handle) {
  return reinterpret_cast<Executable*>(handle);
}

}  // namespace
}  // namespace fake_gpu

using fake_gpu::executable_of;
using fake_gpu::graph_of;
using fake_gpu::report;
using fake_gpu::stream_of;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode) {
  return report(fake_gpu::begin_capture(stream_of(stream), mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  auto result = std::make_unique<fake_gpu::Graph>();
  const auto error = fake_gpu::end_capture(stream_of(stream), result.get());
  *graph = error == cudaSuccess
               ? reinterpret_cast<cudaGraph_t>(result.release())
               : nullptr;
  return report(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  cudaStreamCaptureStatus* status) {
  return report(fake_gpu::read_capture(stream_of(stream), status, nullptr));
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long* id,
                                     cudaGraph_t*,
                                     const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**,
                                     size_t*) {
  uint64_t number = 0;
  const auto error = fake_gpu::read_capture(stream_of(stream), status, &number);
  if (id != nullptr) {
    *id = number;
  }
  return report(error);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  *mode = fake_gpu::exchange_capture_mode(*mode);
  return cudaSuccess;
}

// The nodes themselves are not shown.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph,
                              cudaGraphNode_t* nodes,
                              size_t* count) {
  if (nodes != nullptr) {
    return report(cudaErrorNotSupported);
  }
  *count = graph_of(graph)->size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable,
                                          cudaGraph_t graph,
                                          unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(
      new fake_gpu::Executable(*graph_of(graph)));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  auto* target = stream_of(stream);
  if (fake_gpu::is_capturing(target)) {  // as a node of another graph
    return report(cudaErrorNotSupported);
  }
  const auto error = report(fake_gpu::check_enqueue(target));
  if (error == cudaSuccess) {
    fake_gpu::count(&fake_gpu::Counts::graph_launches);
    executable_of(executable)->launch(target);
  }
  return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph_of(graph);
  return cudaSuccess;
}

// Queued operations of the graph still run, as in the CUDA runtime.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable_of(executable);
  return cudaSuccess;
}

}  // extern "C"
