#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/tests/record.h"
#include "test/gpu/nccl_ranks.h"
#include "test/support/catch.h"

// LibTorch's CUDA graphs over the stand-in.
namespace fake_gpu::test {
namespace torch_graphs_test {

using at::cuda::CUDAGraph;
using ddp::test::NcclRank;
using torch::Tensor;

constexpr Mode kModes[] = {
    Mode::lazy, Mode::eager, Mode::mixed, Mode::priority};

TEST_CASE("a launch computes from the values of that time") {
  schedule(Mode::lazy, 1);
  auto x = torch::ones({64}, torch::kCUDA);
  Tensor y;
  CUDAGraph graph;
  record(graph, [&] { y = x * 2 + 1; });
  reset_counts();
  for (const float value : {3.F, 5.F}) {
    x.fill_(value);
    graph.replay();
    CHECK(y.cpu().equal(torch::full({64}, value * 2 + 1)));
  }
  CHECK(counts().graph_launches == 2);
  CHECK(counts().operators == 0);
}

/// A training step with dropout, a side stream, and memory that is freed within
/// the step.
class Training {
 public:
  Training() {
    torch::manual_seed(3);
    net_->reset_parameters();
    net_->to(torch::kCUDA);
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void step() {
    const auto side = c10::cuda::getStreamFromPool();
    at::cuda::CUDAEvent forked;
    forked.record();
    forked.block(side);
    Tensor noise;
    at::cuda::CUDAEvent drawn;
    {
      const c10::cuda::CUDAStreamGuard guard(side);
      noise = torch::rand({8, 4}, torch::kCUDA);
      drawn.record();
    }
    drawn.block(c10::cuda::getCurrentCUDAStream());
    net_->zero_grad();
    namespace F = torch::nn::functional;
    const auto output = F::dropout(net_->forward(input_ + noise),
                                   F::DropoutFuncOptions().p(0.25));
    const auto loss = output.pow(2).mean();
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net_->parameters()) {
      parameter.add_(parameter.grad(), -0.5);
    }
    losses_.add_(loss);
    noise.record_stream(c10::cuda::getCurrentCUDAStream());
  }

  /// Returns everything that training has changed.
  std::vector<Tensor> state() const {
    std::vector<Tensor> result{losses_.cpu()};
    for (const auto& parameter : net_->parameters()) {
      result.push_back(parameter.detach().cpu());
    }
    return result;
  }

 private:
  torch::nn::Linear net_{4, 6};
  Tensor input_ = torch::ones({8, 4}, torch::kCUDA);
  Tensor losses_ = torch::zeros({}, torch::kCUDA);
};

/// Uses and frees memory outside the graph, as an epoch's evaluation does.
void use_other_memory() {
  for (int i = 1; i < 5; ++i) {
    torch::full({8, 4 * i}, 1e9, torch::kCUDA) + 1;
  }
}

TEST_CASE("recorded training equals eager training bit for bit") {
  const auto mode = GENERATE(from_range(std::begin(kModes), std::end(kModes)));
  schedule(mode, 2);
  constexpr int kSteps = 4;
  Training eager;
  for (int i = 0; i < kSteps + 1; ++i) {
    eager.step();
  }
  Training recorded;
  recorded.step();  // makes the gradients
  CUDAGraph graph;
  record(graph, [&] { recorded.step(); });
  for (int i = 0; i < kSteps; ++i) {
    use_other_memory();
    graph.replay();
  }
  const auto expected = eager.state();
  const auto got = recorded.state();
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(got[i].equal(expected[i]));
  }
}

TEST_CASE("random numbers go on from launch to launch and eager code") {
  schedule(Mode::lazy, 1);
  const auto draw = [] { return torch::rand({100}, torch::kCUDA); };
  torch::cuda::manual_seed(7);
  std::vector<Tensor> expected;
  for (int i = 0; i < 6; ++i) {
    expected.push_back(draw().cpu());
  }
  Tensor first;
  Tensor second;
  CUDAGraph graph;
  torch::cuda::manual_seed(1);
  record(graph, [&] {
    first = draw();
    second = draw();
  });
  torch::cuda::manual_seed(7);
  CHECK(draw().cpu().equal(expected[0]));
  for (int i = 1; i < 5; i += 2) {
    graph.replay();
    CHECK(first.cpu().equal(expected[i]));
    CHECK(second.cpu().equal(expected[i + 1]));
  }
  CHECK(draw().cpu().equal(expected[5]));
}

TEST_CASE("a host read in a capture is an error") {
  schedule(Mode::lazy, 1);
  const auto x = torch::ones({1}, torch::kCUDA);
  const std::function<void(const Tensor&)> reads[] = {
      [](const Tensor& y) { y.item<float>(); },
      [&](const Tensor& y) { y.equal(x); },
      [](const Tensor&) { c10::cuda::device_synchronize(); }};
  for (const auto& read : reads) {
    const auto pool = at::cuda::graph_pool_handle();
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    CUDAGraph graph;
    graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    const auto y = x + 1;
    CHECK_THROWS_WITH(read(y), Catch::Contains("when stream is capturing"));
    CHECK_THROWS_WITH(graph.capture_end(),
                      Catch::Contains("previous error during capture"));
    // LibTorch does so only at the end of a capture without an error.
    c10::cuda::CUDACachingAllocator::endAllocateToPool(0, pool);
    c10::cuda::CUDACachingAllocator::releasePool(0, pool);
  }
  // Also gives the random generator back to eager code.
  Tensor y;
  CUDAGraph graph;
  record(graph, [&] { y = x + 1; });
  graph.replay();
  CHECK(y.item<float>() == 2);
  CHECK_NOTHROW(torch::rand({1}, torch::kCUDA));
}

/// The sum over the ranks of a tensor, recorded.
class RecordedSum {
 public:
  explicit RecordedSum(const NcclRank& rank)
      : input_(torch::ones({1000}, rank.device)) {
    const c10::cuda::CUDAGuard device(rank.device.index());
    const auto step = [&] {
      std::vector<Tensor> values{input_ * 2};
      rank.group->allreduce(values)->wait();
      output_ = values[0] + 1;
    };
    step();  // makes the communicator
    rank.meet();
    record(graph_, step);
  }

  void launch(float value) {
    input_.fill_(value);
    graph_.replay();
  }
  bool is(float sum) const {
    return output_.cpu().equal(torch::full({1000}, 2 * sum + 1));
  }

 private:
  Tensor input_;
  Tensor output_;
  CUDAGraph graph_;
};

TEST_CASE("each launch makes a recorded collective again") {
  ddp::test::run_nccl_ranks(2, [](const NcclRank& rank) {
    RecordedSum sum(rank);
    for (int i = 0; i < 20; ++i) {
      rank.meet();
      if (rank.rank == 0) {
        schedule(kModes[i % 4], i);
      }
      rank.meet();
      sum.launch(rank.rank + i);
      rank.expect(sum.is(1 + 2 * i), "sum");
    }
  });
}

TEST_CASE("an abort ends a recorded collective that waits") {
  schedule(Mode::lazy, 1);
  reset_counts();
  ddp::test::run_nccl_ranks(2, [](const NcclRank& rank) {
    RecordedSum sum(rank);
    if (rank.rank == 0) {
      sum.launch(1);
      const auto stream = c10::cuda::getCurrentCUDAStream();
      for (int i = 0; i < 1000; ++i) {
        rank.expect(!stream.query(), "ends without the other rank");
      }
      rank.group->abort();
      stream.synchronize();
    }
  });
  CHECK(counts().aborted_collectives == 1);
}

}  // namespace torch_graphs_test
}  // namespace fake_gpu::test
