#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/job/state_sync.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"

// Tests the reducer's behaviour that is specific to GPUs: detecting a peer's
// failure without blocking, synchronising streams, and never stalling the host.
namespace ddp {
namespace reducer_test {

using test::any_schedule;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
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

// Rank 0 would wait for the group's time-out, so it makes the first two passes
// only.
TEST_CASE("after a missing gradient its rank makes no other pass",
          "[gpu][stand-in]") {
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  // Held gradients need new buckets, which must not lose the pass outcome.
  const bool hold_gradients = GENERATE(false, true);
  std::vector<std::string> errors;
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Two net;
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    Tensor held;
    for (int pass = 0; pass < (rank.rank == 0 ? 2 : 6); ++pass) {
      std::string error;
      try {
        model->forward(1, pass != 2).backward();
      } catch (const c10::Error& e) {
        error = e.what_without_backtrace();
      }
      rank.expect(error.empty() == (pass < 2), "pass " + error);
      torch::cuda::synchronize(rank.device.index());
      if (rank.rank == 1) {
        errors.push_back(error);
      }
      held = hold_gradients ? net->a.grad() : Tensor();
      net->zero_grad();
    }
  });
  CHECK_THAT(errors[2], Catch::Contains("got none on rank 1: b;"));
  for (int pass = 3; pass < 6; ++pass) {
    CHECK_THAT(errors[pass], Catch::Contains("got none on rank 1: b;"));
  }
}

// One rank's parameters are moved to other memory; all ranks then use its
// values.
TEST_CASE("a parameter on a GPU may get other memory between steps",
          "[gpu][stand-in]") {
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Two net;
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto steps = [&] {
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        model->forward(1, true).backward();
        optimizer.step();
        torch::cuda::synchronize(rank.device.index());
      }
    };
    const auto allocated = [&] {
      return c10::cuda::CUDACachingAllocator::getDeviceStats(
                 rank.device.index())
          .allocated_bytes[0]
          .current;
    };
    steps();
    const auto before = allocated();
    for (const auto& parameter : net->parameters()) {
      if (rank.rank == 0) {
        parameter.set_data(torch::zeros_like(parameter));
      }
      detail::broadcast_from(0, *rank.group, {parameter});
    }
    steps();
    rank.expect_close(net->a, torch::full({300}, -0.5), "parameter a");
    rank.expect(allocated() <= before,
                c10::str("memory grew from ", before, " to ", allocated()));
  });
}

TEST_CASE("a step with find_unused_parameters does not stall the host",
          "[gpu][stand-in]") {
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

// The copy has not run when the next pass begins, and the host holds no
// reference to the gradient.
TEST_CASE("a gradient that another stream still copies keeps its values",
          "[gpu][stand-in]") {
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    Two net;
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    const auto side = rank.new_stream();
    std::vector<Tensor> copies;
    for (int pass = 1; pass <= 4; ++pass) {
      net->zero_grad();
      model->forward(pass, true).backward();
      Tensor grad = net->a.grad();
      net->a.mutable_grad() = Tensor();
      c10::Event ready(c10::kCUDA);
      ready.record(c10::cuda::getCurrentCUDAStream(rank.device.index()));
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

TEST_CASE("a bucket waits for the streams of all its gradients",
          "[gpu][stand-in]") {
  REQUIRE(has_gpus(2));
  // Without an order of its own, each gradient has a bucket, and the bucket
  // that is filled last may start first.
  const bool has_two_buckets = GENERATE(false, true);
  const bool is_a_first = GENERATE(false, true);
  INFO(any_schedule());
  const auto options = has_two_buckets ? Options()
                                             .find_unused_parameters(true)
                                             .first_bucket_cap_mb(0.001)
                                             .bucket_cap_mb(0.001)
                                       : Options();
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    auto a = torch::ones({300}, rank.device).requires_grad_();
    auto b = torch::ones({300}, rank.device).requires_grad_();
    torch::cuda::synchronize(rank.device.index());
    const auto first = rank.new_stream();
    const auto second = rank.new_stream();
    // Autograd accumulates on the stream on which a leaf was first used.
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
    Reducer reducer({{"a", a}, {"b", b}}, rank.group, options);
    TORCH_CHECK(reducer.plan().size() == (has_two_buckets ? 2 : 1));
    for (int step = 1; step <= 4; ++step) {
      a.mutable_grad() = Tensor();
      b.mutable_grad() = Tensor();
      Tensor of_a;
      Tensor of_b;
      // Autograd begins with the last result.
      for (const bool is_a : {!is_a_first, is_a_first}) {
        const c10::StreamGuard guard(is_a ? first : second);
        auto& sum = is_a ? of_a : of_b;
        sum = ((is_a ? a : b) * ((is_a ? 2.0 : 4.0) * step * rank.rank)).sum();
      }
      torch::autograd::backward({of_a, of_b}, {});
      rank.expect_close(
          a.grad(), torch::full({300}, 1.0 * step), "gradient of a");
      rank.expect_close(
          b.grad(), torch::full({300}, 2.0 * step), "gradient of b");
    }
  });
}

}  // namespace reducer_test
}  // namespace ddp
