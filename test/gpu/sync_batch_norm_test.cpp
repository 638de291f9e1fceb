#include "ddp/nn/sync_batch_norm.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"
#include "test/support/catch.h"

// Tests LibTorch's kernels of a batch norm over ranks, with one thread and one
// GPU per rank.
namespace ddp {
namespace gpu_sync_batch_norm_test {

using test::any_schedule;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using torch::Tensor;
using torch::nn::BatchNormOptions;

Tensor numbers(at::IntArrayRef sizes, double seed) {
  const auto places = torch::arange(c10::multiply_integers(sizes), at::kDouble);
  return ((places * 0.7 + seed).sin() * 3 + seed).view(sizes);
}

/// Compares training steps to a plain layer on the CPU with the batches of both
/// ranks.
void compare(const NcclRank& rank,
             const std::vector<int64_t>& rows,
             const BatchNormOptions& options) {
  torch::nn::BatchNorm2d whole(options);
  SyncBatchNorm part(options, rank.group);
  whole->to(torch::kDouble);
  part->to(torch::kDouble);
  part->to(rank.device);
  const int64_t begin = rank.rank == 0 ? 0 : rows[0];
  const auto mine = [&](const Tensor& tensor) {
    return tensor.narrow(0, begin, rows[rank.rank]);
  };
  for (int step = 1; step <= 3; ++step) {
    const auto all = numbers({rows[0] + rows[1], 4, 3, 2}, step);
    const auto slope = numbers(all.sizes(), step + 0.5);
    const auto all_in = all.clone().requires_grad_();
    const auto expected = whole->forward(all_in);
    (expected * slope).sum().backward();
    const auto in = mine(all).to(rank.device).requires_grad_();
    const auto got = part->forward(in);
    (got * mine(slope).to(rank.device)).sum().backward();
    if (rows[rank.rank] > 0) {
      rank.expect_close(got, mine(expected), "the output");
      rank.expect_close(in.grad(), mine(all_in.grad()), "its gradient");
    }
    for (const auto& item : whole->named_buffers()) {
      rank.expect_close(
          part->named_buffers()[item.key()], item.value(), item.key());
    }
    for (const auto& item : whole->named_parameters()) {
      const auto grad = part->named_parameters()[item.key()].grad();
      std::vector<Tensor> sum{grad.clone()};
      rank.group->allreduce(sum)->wait();
      rank.expect_close(sum[0], item.value().grad(), item.key());
    }
    whole->zero_grad();
    part->zero_grad();
  }
}

TEST_CASE("a SyncBatchNorm on GPUs equals one over all batches", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  const auto rows = GENERATE(std::vector<int64_t>{2, 3},
                             std::vector<int64_t>{0, 3},
                             std::vector<int64_t>{3, 0});
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    compare(rank, rows, BatchNormOptions(4));
    compare(rank, rows, BatchNormOptions(4).affine(false).momentum({}));
    compare(rank, rows, BatchNormOptions(4).track_running_stats(false));
  });
}

TEST_CASE("a SyncBatchNorm never waits for the GPU", "[gpu][stand-in]") {
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    SyncBatchNorm norm(4, rank.group);
    norm->to(rank.device);
    const auto train = [&](int64_t rows) {
      const auto input = torch::ones({rows, 4}, rank.device).requires_grad_();
      norm->forward(input).sum().backward();
    };
    train(2);  // compares the layers
    rank.meet();
    fake_gpu::reset_counts();
    rank.meet();
    train(3 * rank.rank);
    rank.meet();
    rank.expect(fake_gpu::counts().host_synchronizes() == 0, "a stall");
  });
}

TEST_CASE("an input that fits not is its own rank's error on GPUs", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  run_nccl_ranks(2, [](const NcclRank& rank) {
    SyncBatchNorm norm(4, rank.group);
    norm->to(rank.device);
    const auto good = torch::ones({2, 4}, rank.device);
    norm->forward(good);
    std::string error;
    try {
      if (rank.rank == 1) {
        norm->forward(torch::ones({2, 3}, rank.device));
      }
    } catch (const c10::Error& caught) {
      error = caught.what_without_backtrace();
    }
    rank.expect(error.empty() == (rank.rank == 0), error);
    rank.expect(
        rank.rank == 0 ||
            error.find("input of shape 2 x 3 on cuda:1") != std::string::npos,
        error);
    rank.expect_close(norm->forward(good), torch::zeros({2, 4}), "afterwards");
  });
}

}  // namespace gpu_sync_batch_norm_test
}  // namespace ddp
