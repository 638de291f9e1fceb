#include <torch/torch.h>

#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ddp/distributed_data_parallel.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"

// What does not work yet. Each test says what should be and is expected to
// fail; when it passes, the mistake has been mended: take the tag away and move
// the test to the others.
namespace ddp {
namespace {

using test::any_schedule;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using test::try_nccl_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

struct TwoImpl : torch::nn::Module {
  TwoImpl() {
    a = register_parameter("a", torch::ones({300}));
    b = register_parameter("b", torch::ones({300}));
  }
  Tensor forward(double factor, bool with_b) {
    return with_b ? ((a + b) * factor).sum() : (a * factor).sum();
  }
  Tensor a, b;
};
TORCH_MODULE(Two);

/// How many passes threw on each rank.
struct Throws {
  int in_the_pass[2] = {0, 0};
  int right_after[2] = {0, 0};
  int later[2] = {0, 0};
};

/// Six passes of two ranks, in the third of which rank 1 misses a gradient. All
/// that was queued has run before the next pass.
Throws passes_with_one_miss(bool hold_gradients) {
  Throws throws;
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Two net;
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    Tensor held;
    for (int pass = 0; pass < 6; ++pass) {
      try {
        model->forward(1, pass != 2 || rank.rank == 0).backward();
      } catch (const c10::Error&) {
        ++(pass < 3    ? throws.in_the_pass
           : pass == 3 ? throws.right_after
                       : throws.later)[rank.rank];
      }
      torch::cuda::synchronize(rank.device.index());
      held = hold_gradients ? net->a.grad() : Tensor();
      net->zero_grad();
    }
  });
  return throws;
}

// The flag that tells the peers is read before it is cleared, so one miss
// throws again in passes that miss nothing.
TEST_CASE("one missing gradient is one error on each rank",
          "[gpu][stand-in][!shouldfail]") {
  REQUIRE(has_gpus(2));
  const auto throws = passes_with_one_miss(/*hold_gradients=*/false);
  CHECK(throws.in_the_pass[1] == 1);
  CHECK(throws.in_the_pass[0] + throws.right_after[0] == 1);
  CHECK(throws.right_after[1] == 0);
  CHECK(throws.later[0] == 0);
  CHECK(throws.later[1] == 0);
}

// New buckets bring a new flag, which has not heard of the pass before.
TEST_CASE("a rank that holds its gradients hears of a peer's missing one",
          "[gpu][stand-in][!shouldfail]") {
  REQUIRE(has_gpus(2));
  const auto throws = passes_with_one_miss(/*hold_gradients=*/true);
  CHECK(throws.in_the_pass[0] + throws.right_after[0] + throws.later[0] > 0);
}

// A rank learns of a peer's missing gradient a pass later than the peer, so it
// steps with what the peer has not, if the program catches the error.
TEST_CASE("a rank does not step where its peer missed a gradient",
          "[gpu][stand-in][!shouldfail]") {
  REQUIRE(has_gpus(2));
  double weight[2] = {0, 0};
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Two net;
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int pass = 0; pass < 2; ++pass) {
      try {
        optimizer.zero_grad();
        model->forward(1, pass == 0 || rank.rank == 0).backward();
        optimizer.step();
      } catch (const c10::Error&) {
      }
    }
    weight[rank.rank] = net->a[0].item<double>();
  });
  CHECK(weight[0] == weight[1]);
}

// The used map goes to the GPU from pageable memory and comes back at once.
TEST_CASE("a step with find_unused_parameters does not stall the host",
          "[gpu][stand-in][!shouldfail]") {
  REQUIRE(has_gpus(2));
  uint64_t stalls = 1;
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Two net;
    net->to(rank.device);
    DistributedDataParallel model(
        net, Options().process_group(rank.group).find_unused_parameters(true));
    model->forward(1, true).backward();
    rank.meet();
    if (rank.rank == 0) {
      fake_gpu::reset_counts();
    }
    rank.meet();
    model->forward(1, true).backward();
    rank.meet();
    if (rank.rank == 0) {
      stalls = fake_gpu::counts().host_synchronizes();
    }
    rank.meet();
  });
  CHECK(stalls == 0);
}

// Whether a gradient is still held is told by its references on the host; a
// copy on another stream that has not run yet is none.
TEST_CASE("a gradient that another stream still copies keeps its values",
          "[gpu][stand-in][!shouldfail]") {
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    Two net;
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    const auto side = c10::cuda::getStreamFromPool();
    std::vector<Tensor> copies;
    for (int pass = 1; pass <= 4; ++pass) {
      net->zero_grad();
      model->forward(pass, true).backward();
      Tensor grad = net->a.grad();
      net->a.mutable_grad() = Tensor();
      c10::Event ready(c10::kCUDA);
      ready.record(c10::cuda::getCurrentCUDAStream());
      const c10::StreamGuard guard(side);
      ready.block(side);
      copies.push_back(grad.clone());
      grad.record_stream(side);
    }
    torch::cuda::synchronize(rank.device.index());
    for (int pass = 1; pass <= 4; ++pass) {
      rank.expect_close(copies[pass - 1],
                        torch::full({300}, 1.0 * pass),
                        "copy of pass " + std::to_string(pass));
    }
  });
}

// A bucket goes off on the stream of its last gradient and waits for no other.
TEST_CASE("a bucket waits for the streams of all its gradients",
          "[gpu][stand-in][!shouldfail]") {
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    auto a = torch::ones({300}, rank.device).requires_grad_();
    auto b = torch::ones({300}, rank.device).requires_grad_();
    torch::cuda::synchronize(rank.device.index());
    const auto first = c10::cuda::getStreamFromPool();
    const auto second = c10::cuda::getStreamFromPool();
    // Autograd accumulates on the stream where a leaf was first used.
    Tensor keep_a;
    Tensor keep_b;
    {
      const c10::StreamGuard guard(first);
      keep_a = a * 1;
    }
    {
      const c10::StreamGuard guard(second);
      keep_b = b * 1;
    }
    Reducer reducer({{"a", a}, {"b", b}}, rank.group);
    for (int step = 1; step <= 4; ++step) {
      a.mutable_grad() = Tensor();
      b.mutable_grad() = Tensor();
      reducer.arm();
      Tensor of_a;
      Tensor of_b;
      {
        const c10::StreamGuard guard(first);
        of_a = (a * (2.0 * step * rank.rank)).sum();
      }
      {
        const c10::StreamGuard guard(second);
        of_b = (b * (4.0 * step * rank.rank)).sum();
      }
      reducer.watch(of_a);
      reducer.watch(of_b);
      torch::autograd::backward({of_a, of_b}, {});
      rank.expect_close(
          a.grad(), torch::full({300}, 1.0 * step), "gradient of a");
      rank.expect_close(
          b.grad(), torch::full({300}, 2.0 * step), "gradient of b");
    }
  });
}

// A wait for NCCL only orders streams, so nobody tells the rank that is left.
TEST_CASE("a pass over NCCL throws when a rank has left",
          "[gpu][stand-in][!shouldfail]") {
  REQUIRE(has_gpus(2));
  const auto errors = try_nccl_ranks(2, [](const NcclRank& rank) {
    Two net;
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    torch::cuda::synchronize(rank.device.index());
    rank.meet();  // all have a model
    rank.expect(rank.rank == 0, "left");
    model->forward(1, true).backward();
    torch::cuda::synchronize(rank.device.index());
  });
  CHECK_THAT(errors[0], Catch::Contains("another rank has left"));
}

}  // namespace
}  // namespace ddp
