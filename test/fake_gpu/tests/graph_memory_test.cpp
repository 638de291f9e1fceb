#include <ATen/cuda/CUDAEvent.h>
#include <torch/types.h>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/tests/record.h"
#include "test/support/catch.h"

// Memory that tensors give back in a capture, or while a graph runs.
namespace fake_gpu::test {
namespace graph_memory_test {

using at::cuda::CUDAGraph;
using torch::Tensor;

constexpr int kSeeds = 20;

Tensor values(float value) {
  return torch::full({64}, value, torch::kCUDA);
}

bool are(const Tensor& tensor, float value) {
  return tensor.cpu().equal(torch::full({64}, value));
}

/// Copies on a side stream, which waits for the current one. Returns the end.
at::cuda::CUDAEvent copy_aside(const Tensor& to,
                               const Tensor& from,
                               const c10::cuda::CUDAStream& side) {
  at::cuda::CUDAEvent event;
  event.record();
  event.block(side);
  const c10::cuda::CUDAStreamGuard guard(side);
  to.copy_(from);
  event.record();
  return event;
}

/// Frees a block at once that a side stream copies.
void copy_freed_block(const Tensor& to, bool records) {
  const auto side = c10::cuda::getStreamFromPool();
  auto block = values(1);
  auto end = copy_aside(to, block, side);
  if (records) {
    block.record_stream(side.unwrap());
  }
  block = Tensor();
  end.block(c10::cuda::getCurrentCUDAStream());
}

int count_wrong_seeds(bool records) {
  const auto to = values(0);
  CUDAGraph graph;
  record(graph, [&] { copy_freed_block(to, records); });
  int wrong = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    schedule(Mode::priority, seed);
    graph.replay();
    wrong += are(to, 1) ? 0 : 1;
  }
  return wrong;
}

TEST_CASE("a recorded block freed without record_stream gives wrong values") {
  CHECK(count_wrong_seeds(/*records=*/false) > 2);
  CHECK(count_wrong_seeds(/*records=*/true) == 0);
}

TEST_CASE("a tensor of a graph may be freed while the graph runs") {
  for (int seed = 1; seed <= 5 * kSeeds; ++seed) {
    schedule(Mode::priority, seed);
    Tensor between;
    const auto result = values(0);
    CUDAGraph graph;
    record(graph, [&] {
      between = values(3);
      copy_aside(result, between, c10::cuda::getStreamFromPool())
          .block(c10::cuda::getCurrentCUDAStream());
    });
    graph.replay();
    between = Tensor();
    CHECK(are(result, 3));
  }
}

TEST_CASE("a graph leaves alone memory that was freed while it was recorded") {
  schedule(Mode::lazy, 1);
  const auto stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  auto freed = values(1);
  const void* address = freed.data_ptr();
  Tensor result;
  CUDAGraph graph;
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  result = values(3);
  freed = Tensor();
  graph.capture_end();
  const auto next = values(5);
  CHECK(next.data_ptr() == address);
  graph.replay();
  CHECK(are(result, 3));
  CHECK(are(next, 5));
}

}  // namespace graph_memory_test
}  // namespace fake_gpu::test
