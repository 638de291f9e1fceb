#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/process_group.h"
#include "ddp/tensors/streams.h"
#include "test/gpu/schedule.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"

// FullyShardedDataParallel in a job, with passes on several streams. Without a
// job the comparison of the uses waits for the GPU at the end of each pass.
namespace fake_gpu::test {
namespace shard_streams_test {

using c10::Stream;
using torch::Tensor;

constexpr int kRanks = 2;
constexpr int64_t kNumel = 8192;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i) {
      register_parameter(c10::str("w", i), torch::ones({kNumel}));
    }
    to(ddp::local_device());
  }
  Tensor forward(const Tensor& x) {
    auto sum = torch::zeros_like(x);
    for (const auto& weight : parameters()) {
      sum = sum + weight * x;
    }
    return sum.sum();
  }
};
TORCH_MODULE(Net);

Stream new_stream() {
  return c10::cuda::getStreamFromPool(/*isHighPriority=*/false,
                                      ddp::local_device().index());
}

/// Returns whether the gradients of three passes are right.
bool accumulates() {
  const c10::StreamGuard guard(new_stream());
  Net net;
  // Each parameter is a unit.
  ddp::FullyShardedDataParallel model(
      net, ddp::FullyShardedDataParallelOptions().unit_cap_mb(0.001));
  const auto x = torch::full({kNumel}, ddp::rank() + 1, ddp::local_device());
  const auto main = ddp::detail::current_stream(x.device());
  const Stream first = new_stream();
  const Stream second = new_stream();
  for (const Stream stream : {first, second}) {
    const c10::StreamGuard on(stream);
    ddp::detail::join_stream(main);
  }
  const auto pass = [&](Stream stream, int factor) {
    Tensor loss;
    {
      const c10::StreamGuard on(stream);
      loss = model->forward(x * factor);
    }
    loss.backward();
  };
  pass(main, 1);  // in later passes the sums of most units end during the pass
  model->zero_grad();
  // The units' hooks allocate the gradients on the pass's stream, and `main`
  // adds them. The third pass frees the gradients of the second one.
  pass(first, 1);
  pass(first, 2);
  pass(second, 3);
  {
    const c10::StreamGuard on(first);
    std::vector<Tensor> others;
    for (int i = 0; i < 64; ++i) {
      others.push_back(
          torch::full({kNumel / kRanks}, -1, x.options().dtype(torch::kFloat)));
    }
    torch::cat(others).cpu();  // runs now, the work of `main` perhaps later
  }
  bool is_right = true;
  for (const auto& leaf : model->parameters()) {
    const auto grad = leaf.grad().clone().cpu();
    is_right = is_right && grad.equal(torch::full_like(grad, 1.5 * 6));
  }
  return is_right;
}

TEST_CASE("gradients are added on another stream than they are allocated on") {
  const auto ends = ddp::test::run_rank_processes(kRanks, [](int rank) {
    ddp::init_process_group();
    std::string wrong;
    for (size_t i = 0; i < 9; ++i) {
      const auto schedule = ddp::test::use_schedule(i);
      if (!accumulates()) {
        wrong += schedule + "; ";
      }
    }
    ddp::destroy_process_group();
    TORCH_CHECK(wrong.empty(), "rank ", rank, " is wrong with: ", wrong);
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.exit_code == 0);
    CHECK(end.signal == 0);
  }
}

}  // namespace shard_streams_test
}  // namespace fake_gpu::test
