#include <chrono>
#include <functional>
#include <thread>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/tests/device_buffer.h"
#include "test/support/catch.h"

// Graphs with CUDA's own functions.
namespace fake_gpu::test {
namespace graphs_test {

using Bytes = std::vector<unsigned char>;
constexpr size_t kBytes = 64;

/// A recorded graph. The constructor records `body`, which gets the stream.
class RecordedGraph {
 public:
  template <typename Body>
  explicit RecordedGraph(const Body& body) {
    const NonBlockingStream stream;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    body(stream);
    end_ = cudaStreamEndCapture(stream, &graph_);
    if (end_ == cudaSuccess) {
      cudaGraphInstantiateWithFlags(&executable_, graph_, 0);
    }
    cudaGetLastError();
  }
  ~RecordedGraph() {
    if (end_ == cudaSuccess) {
      cudaGraphExecDestroy(executable_);
      cudaGraphDestroy(graph_);
    }
  }
  RecordedGraph(const RecordedGraph&) = delete;
  RecordedGraph& operator=(const RecordedGraph&) = delete;

  /// Returns the result of cudaStreamEndCapture.
  cudaError_t end() const { return end_; }
  void launch(cudaStream_t stream) const {
    CHECK(cudaGraphLaunch(executable_, stream) == cudaSuccess);
  }
  size_t size() const {
    size_t nodes = 0;
    cudaGraphGetNodes(graph_, nullptr, &nodes);
    return nodes;
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  cudaError_t end_ = cudaSuccess;
};

void copy(const DeviceBuffer& to, const DeviceBuffer& from, cudaStream_t s) {
  cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDefault, s);
}

/// Records two branches: one writes `from`, the other copies it to `to`.
/// Without the wait, the graph may do so in any order.
void record_branches(const DeviceBuffer& from,
                     const DeviceBuffer& to,
                     const NonBlockingStream& stream,
                     bool waits) {
  const NonBlockingStream side;
  side.wait_for(stream);
  cudaMemsetAsync(from.data(), 2, kBytes, stream);
  if (waits) {
    side.wait_for(stream);
  }
  copy(to, from, side);
  side.wait_for(stream);  // too late to order the copy
  stream.wait_for(side);
}

/// Returns for how many of 20 seeds the second branch has read old values.
int count_early_reads(Mode mode, bool waits) {
  const DeviceBuffer from(kBytes);
  const DeviceBuffer to(kBytes);
  const RecordedGraph graph([&](const NonBlockingStream& stream) {
    record_branches(from, to, stream, waits);
  });
  const NonBlockingStream stream;
  int early = 0;
  for (int seed = 1; seed <= 20; ++seed) {
    schedule(mode, seed);
    cudaMemsetAsync(from.data(), 1, kBytes, stream);
    graph.launch(stream);
    stream.synchronize();
    early += to.read<unsigned char>() == Bytes(kBytes, 2) ? 0 : 1;
  }
  return early;
}

TEST_CASE("recorded operations run once in each launch") {
  const auto mode =
      GENERATE(Mode::eager, Mode::lazy, Mode::mixed, Mode::priority);
  schedule(mode, 1);
  const DeviceBuffer from(kBytes);
  const DeviceBuffer to(kBytes);
  const RecordedGraph graph([&](const NonBlockingStream& stream) {
    copy(to, from, stream);
    cudaMemsetAsync(from.data(), 9, kBytes, stream);
  });
  CHECK(graph.size() == 2);
  cudaMemset(to.data(), 0, kBytes);
  CHECK(to.read<unsigned char>() == Bytes(kBytes, 0));
  const NonBlockingStream stream;
  for (unsigned char value = 1; value < 4; ++value) {
    cudaMemsetAsync(from.data(), value, kBytes, stream);
    graph.launch(stream);
    graph.launch(stream);
    stream.synchronize();
    CHECK(to.read<unsigned char>() == Bytes(kBytes, 9));
    cudaMemsetAsync(from.data(), value, kBytes, stream);
    graph.launch(stream);
    stream.synchronize();
    CHECK(to.read<unsigned char>() == Bytes(kBytes, value));
  }
}

TEST_CASE("launches of one graph on two streams run one after the other") {
  const DeviceBuffer from(kBytes);
  const DeviceBuffer to(kBytes);
  const DeviceBuffer last(kBytes);
  // Reads the values that the second branch of the last launch has written.
  const RecordedGraph graph([&](const NonBlockingStream& stream) {
    copy(last, to, stream);
    record_branches(from, to, stream, /*waits=*/true);
  });
  const NonBlockingStream first;
  const NonBlockingStream second;
  for (int seed = 1; seed <= 20; ++seed) {
    schedule(Mode::priority, seed);
    cudaMemset(to.data(), 0, kBytes);
    cudaDeviceSynchronize();
    graph.launch(first);
    graph.launch(second);
    second.synchronize();
    CHECK(last.read<unsigned char>() == Bytes(kBytes, 2));
  }
}

TEST_CASE("seeds reorder the branches of a graph, waits hold") {
  CHECK(count_early_reads(Mode::priority, /*waits=*/false) > 4);
  CHECK(count_early_reads(Mode::priority, /*waits=*/false) < 20);
  for (const Mode mode :
       {Mode::eager, Mode::lazy, Mode::mixed, Mode::priority}) {
    CHECK(count_early_reads(mode, /*waits=*/true) == 0);
  }
}

TEST_CASE("a stream that does not come back is an error") {
  const DeviceBuffer buffer(kBytes);
  const NonBlockingStream side;
  const auto fork = [&](const NonBlockingStream& stream) {
    side.wait_for(stream);
    cudaMemsetAsync(buffer.data(), 1, kBytes, side);
  };
  CHECK(RecordedGraph(fork).end() == cudaErrorStreamCaptureUnjoined);
  CHECK(RecordedGraph([&](const NonBlockingStream& stream) {
          fork(stream);
          stream.wait_for(side);
        }).end() == cudaSuccess);
  // A join before the last operation is none.
  CHECK(RecordedGraph([&](const NonBlockingStream& stream) {
          fork(stream);
          stream.wait_for(side);
          cudaMemsetAsync(buffer.data(), 1, kBytes, side);
        }).end() == cudaErrorStreamCaptureUnjoined);
}

TEST_CASE("a lost wait of a capture is a fork or a join that is missing") {
  schedule(Mode::lazy, 1);
  const DeviceBuffer from(kBytes);
  const DeviceBuffer to(kBytes);
  const auto record = [&] {
    return RecordedGraph([&](const NonBlockingStream& stream) {
             record_branches(from, to, stream, /*waits=*/true);
           })
        .end();
  };
  const auto [lost, error, fate] = GENERATE(table<int, cudaError_t, LostWait>(
      {{1, cudaSuccess, LostWait::covered},
       {2, cudaSuccess, LostWait::missing},
       {3, cudaSuccess, LostWait::reached},
       {4, cudaErrorStreamCaptureUnjoined, LostWait::missing},
       {5, cudaSuccess, LostWait::none}}));
  lose_wait(lost);
  CHECK(record() == error);
  CHECK(lost_wait(0) == fate);
  lose_wait(0);
}

/// A call in a capture, its error, and whether the capture is invalid then.
struct Refusal {
  const char* call;
  std::function<cudaError_t(const NonBlockingStream&)> make;
  cudaError_t error;
};

TEST_CASE("calls that conflict with a capture are errors and end it") {
  schedule(Mode::lazy, 1);
  const DeviceBuffer buffer(kBytes);
  const NonBlockingStream other;
  cudaEvent_t outside = nullptr;
  cudaEvent_t captured = nullptr;
  cudaEventCreate(&outside);
  cudaEventCreate(&captured);
  cudaEventRecord(outside, other);
  other.synchronize();
  Bytes pageable(kBytes, 0);
  const auto read = [&](cudaStream_t stream) {
    return cudaMemcpyAsync(
        pageable.data(), buffer.data(), kBytes, cudaMemcpyDefault, stream);
  };
  const auto allocate = [] {
    void* pointer = nullptr;
    return cudaMalloc(&pointer, kBytes);
  };
  const Refusal refusals[] = {
      {"wait for the stream",
       [](const auto& s) { return cudaStreamSynchronize(s); },
       cudaErrorStreamCaptureUnsupported},
      {"query of the stream",
       [](const auto& s) { return cudaStreamQuery(s); },
       cudaErrorStreamCaptureUnsupported},
      {"wait for the device",
       [](const auto&) { return cudaDeviceSynchronize(); },
       cudaErrorStreamCaptureUnsupported},
      {"query of a captured event",
       [&](const auto&) { return cudaEventQuery(captured); },
       cudaErrorCapturedEvent},
      {"wait for a captured event",
       [&](const auto&) { return cudaEventSynchronize(captured); },
       cudaErrorCapturedEvent},
      {"query of another event",
       [&](const auto&) { return cudaEventQuery(outside); },
       cudaErrorStreamCaptureUnsupported},
      {"wait for another stream",
       [&](const auto&) { return cudaStreamSynchronize(other); },
       cudaErrorStreamCaptureUnsupported},
      {"event from outside",
       [&](const auto& s) { return cudaStreamWaitEvent(s, outside, 0); },
       cudaErrorStreamCaptureIsolation},
      {"pageable copy",
       [&](const auto& s) { return read(s); },
       cudaErrorStreamCaptureUnsupported},
      {"synchronous copy",
       [&](const auto&) {
         return cudaMemcpy(
             pageable.data(), buffer.data(), kBytes, cudaMemcpyDefault);
       },
       cudaErrorStreamCaptureUnsupported},
      {"allocation",
       [&](const auto&) { return allocate(); },
       cudaErrorStreamCaptureUnsupported},
      {"wait of the legacy stream",
       [&](const auto&) { return cudaStreamWaitEvent(nullptr, captured, 0); },
       cudaErrorStreamCaptureImplicit},
  };
  for (const Refusal& refusal : refusals) {
    CAPTURE(refusal.call);
    cudaStreamCaptureStatus status{};
    const RecordedGraph graph([&](const NonBlockingStream& stream) {
      cudaEventRecord(captured, stream);
      CHECK(refusal.make(stream) == refusal.error);
      cudaStreamIsCapturing(stream, &status);
      CHECK(cudaMemsetAsync(buffer.data(), 1, kBytes, stream) ==
            cudaErrorStreamCaptureInvalidated);
    });
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    CHECK(graph.end() == cudaErrorStreamCaptureInvalidated);
  }
  CHECK(cudaEventQuery(captured) == cudaErrorCapturedEvent);
  CHECK(cudaStreamWaitEvent(other, captured, 0) == cudaErrorCapturedEvent);
  CHECK(read(other) == cudaSuccess);
  cudaGetLastError();
  cudaEventDestroy(outside);
  cudaEventDestroy(captured);
}

TEST_CASE("a capture with a blocking stream forbids the legacy stream") {
  const DeviceBuffer buffer(kBytes);
  cudaStream_t blocking = nullptr;
  cudaStreamCreate(&blocking);
  cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed);
  cudaStreamCaptureStatus status{};
  CHECK(cudaStreamIsCapturing(nullptr, &status) ==
        cudaErrorStreamCaptureImplicit);
  CHECK(cudaMemsetAsync(buffer.data(), 1, kBytes, blocking) == cudaSuccess);
  CHECK(cudaMemsetAsync(buffer.data(), 1, kBytes, nullptr) ==
        cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(blocking, &graph) ==
        cudaErrorStreamCaptureInvalidated);
  CHECK(graph == nullptr);
  cudaGetLastError();
  cudaStreamDestroy(blocking);
}

// The operation runs at once and is not a part of the graph.
TEST_CASE("a capture without blocking streams misses the legacy stream") {
  schedule(Mode::lazy, 1);
  const DeviceBuffer from(kBytes);
  const DeviceBuffer to(kBytes);
  const RecordedGraph graph([&](const NonBlockingStream& stream) {
    CHECK(cudaMemsetAsync(from.data(), 1, kBytes, nullptr) == cudaSuccess);
    copy(to, from, stream);
  });
  CHECK(graph.end() == cudaSuccess);
  CHECK(graph.size() == 1);
  CHECK(from.read<unsigned char>() == Bytes(kBytes, 1));
  cudaMemset(from.data(), 7, kBytes);
  graph.launch(nullptr);
  CHECK(to.read<unsigned char>() == Bytes(kBytes, 7));
}

cudaError_t query_in(cudaStreamCaptureMode mode) {
  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  cudaThreadExchangeStreamCaptureMode(&mode);
  const auto error = cudaEventQuery(event);
  cudaThreadExchangeStreamCaptureMode(&mode);
  cudaEventDestroy(event);
  return error;
}

constexpr auto kGlobal = cudaStreamCaptureModeGlobal;
constexpr auto kLocal = cudaStreamCaptureModeThreadLocal;
constexpr auto kRelaxed = cudaStreamCaptureModeRelaxed;

TEST_CASE("modes say which threads may make unsafe calls") {
  const auto mode = GENERATE(kGlobal, kLocal, kRelaxed);
  const auto own = GENERATE(kGlobal, kLocal, kRelaxed);
  const bool elsewhere = GENERATE(false, true);
  CAPTURE(mode, own, elsewhere);
  const NonBlockingStream stream;
  cudaStreamBeginCapture(stream, mode);
  auto got = cudaSuccess;
  if (elsewhere) {
    std::thread([&] { got = query_in(own); }).join();
  } else {
    got = query_in(own);
  }
  const bool allowed = own == kRelaxed || mode == kRelaxed ||
                       (elsewhere && (mode == kLocal || own == kLocal));
  CHECK(got == (allowed ? cudaSuccess : cudaErrorStreamCaptureUnsupported));
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph) ==
        (allowed ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
  if (allowed) {
    cudaGraphDestroy(graph);
  }
  cudaGetLastError();
}

TEST_CASE("a capture ends on its stream, in its thread") {
  const NonBlockingStream stream;
  const NonBlockingStream side;
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) ==
        cudaErrorStreamCaptureUnsupported);

  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) ==
        cudaErrorIllegalState);
  auto got = cudaSuccess;
  std::thread([&] { got = cudaStreamEndCapture(stream, &graph); }).join();
  CHECK(got == cudaErrorStreamCaptureWrongThread);
  side.wait_for(stream);
  CHECK(cudaStreamEndCapture(side, &graph) == cudaErrorStreamCaptureUnmatched);
  CHECK(cudaStreamEndCapture(stream, &graph) ==
        cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_CASE("two captures do not merge") {
  const NonBlockingStream first;
  const NonBlockingStream second;
  cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed);
  cudaStreamBeginCapture(second, cudaStreamCaptureModeRelaxed);
  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  cudaEventRecord(event, first);
  CHECK(cudaStreamWaitEvent(second, event, 0) == cudaErrorStreamCaptureMerge);
  cudaGraph_t graph = nullptr;
  for (const NonBlockingStream* stream : {&first, &second}) {
    CHECK(cudaStreamEndCapture(*stream, &graph) ==
          cudaErrorStreamCaptureInvalidated);
  }
  cudaGetLastError();
  cudaEventDestroy(event);
}

}  // namespace graphs_test
}  // namespace fake_gpu::test
