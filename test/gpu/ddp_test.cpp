#include <numeric>

#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <c10/core/StreamGuard.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/quantized_exchange.h"
#include "ddp/job/monitored_backend.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"

// Tests DistributedDataParallel over NCCL, with one thread and one GPU per
// rank.
namespace ddp {
namespace ddp_test {

using test::any_schedule;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using test::try_nccl_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

torch::nn::Sequential make_net(uint64_t seed) {
  // Uses its own generator instead of manual_seed(), because the ranks share
  // LibTorch's generators.
  auto generator = at::detail::createCPUGenerator(seed);
  torch::nn::Sequential net(torch::nn::Linear(6, 16),
                            torch::nn::Tanh(),
                            torch::nn::Linear(16, 16),
                            torch::nn::ReLU(),
                            torch::nn::Linear(16, 2));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(torch::rand(parameter.sizes(), generator) - 0.5);
  }
  return net;
}

/// Returns the rows of all ranks, on the CPU.
Tensor batch_of(int step, int ranks) {
  return torch::rand({4 * ranks, 6},
                     at::detail::createCPUGenerator(100 + step));
}

/// Returns this rank's rows, on its GPU.
Tensor part_of(const Tensor& batch, const NcclRank& rank) {
  return batch.slice(0, 4 * rank.rank, 4 * rank.rank + 4).to(rank.device);
}

void expect_same_state(const NcclRank& rank,
                       const torch::nn::Module& got,
                       const torch::nn::Module& expected) {
  for (const auto& item : expected.named_parameters()) {
    rank.expect_close(
        got.named_parameters()[item.key()], item.value(), item.key());
  }
}

/// Returns the error text of `call`, or "". Returns after all ranks have called
/// it.
template <typename Call>
std::string error_of(const NcclRank& rank, const Call& call) {
  std::string error;
  try {
    call();
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  }
  rank.meet();
  return error;
}

TEST_CASE("ranks over NCCL train as the plain module on all rows", "[gpu]") {
  const int size = GENERATE(2, 3);
  const bool as_view = GENERATE(false, true);
  if (!has_gpus(size)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(size, [&](const NcclRank& rank) {
    auto plain = make_net(0);
    auto net = make_net(rank.rank);
    net->to(rank.device);
    // A stream of the user: the pass must wait for earlier work on it.
    const c10::StreamGuard guard(rank.new_stream());
    DistributedDataParallel model(net,
                                  Options()
                                      .process_group(rank.group)
                                      .gradient_as_bucket_view(as_view)
                                      .first_bucket_cap_mb(0.0003)
                                      .bucket_cap_mb(0.0005));
    const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD one(plain->parameters(), sgd);
    torch::optim::SGD many(model->parameters(), sgd);
    for (int step = 0; step < 4; ++step) {
      const auto batch = batch_of(step, size);
      one.zero_grad();
      plain->forward(batch).pow(2).mean().backward();
      torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
      one.step();
      many.zero_grad(/*set_to_none=*/step % 2 == 0);
      model->forward(part_of(batch, rank)).pow(2).mean().backward();
      torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
      many.step();
    }
    expect_same_state(rank, *net, *plain);
  });
}

TEST_CASE("gradients gather over NCCL until the guard has gone", "[gpu]") {
  const bool as_view = GENERATE(false, true);
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    auto plain = make_net(0);
    auto net = make_net(0);
    net->to(rank.device);
    DistributedDataParallel model(
        net,
        Options().process_group(rank.group).gradient_as_bucket_view(as_view));
    for (int step = 0; step < 3; ++step) {
      for (int part = 0; part < 2; ++part) {
        plain->forward(batch_of(2 * step + part, 2)).pow(2).mean().backward();
      }
      {
        const NoSyncGuard no_sync(*model);
        model->forward(part_of(batch_of(2 * step, 2), rank))
            .pow(2)
            .mean()
            .backward();
      }
      model->forward(part_of(batch_of(2 * step + 1, 2), rank))
          .pow(2)
          .mean()
          .backward();
      for (size_t i = 0; i < plain->parameters().size(); ++i) {
        rank.expect_close(net->parameters()[i].grad(),
                          plain->parameters()[i].grad(),
                          "gradient " + std::to_string(i) + " of step " +
                              std::to_string(step));
      }
      plain->zero_grad();
      net->zero_grad();
    }
  });
}

/// Parameters a, b, c of one dtype. The arguments of forward select the
/// computation.
struct ThreeImpl : torch::nn::Module {
  explicit ThreeImpl(torch::Dtype type = torch::kFloat) {
    a = register_parameter("a", torch::ones({7}, type));
    b = register_parameter("b", torch::ones({1000}, type));
    c = register_parameter("c", torch::ones({3, 5}, type));
  }
  Tensor forward(double factor, bool with_b, bool with_c) {
    auto sum = (a * factor).sum();
    if (with_b) {
      sum = sum + (b * (2 * factor)).sum();
    }
    return with_c ? sum + (c * (4 * factor)).sum() : sum;
  }
  Tensor a, b, c;
};
TORCH_MODULE(Three);

TEST_CASE("a parameter that no rank uses keeps its gradient", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    Three net;
    net->to(rank.device);
    DistributedDataParallel model(
        net, Options().process_group(rank.group).find_unused_parameters(true));
    for (int step = 1; step <= 3; ++step) {
      net->zero_grad();
      // Uses b on rank 0 only, and c on no rank.
      model->forward(step * (rank.rank + 1.0), rank.rank == 0, false)
          .backward();
      rank.expect_close(
          net->a.grad(), torch::full({7}, 1.5 * step), "gradient of a");
      rank.expect_close(
          net->b.grad(), torch::full({1000}, 1.0 * step), "gradient of b");
      rank.expect(!net->c.grad().defined(), "c has a gradient");
    }
  });
}

TEST_CASE("gradients of narrow types are averaged over NCCL", "[gpu]") {
  const auto type = GENERATE(torch::kHalf, torch::kBFloat16, torch::kDouble);
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Three net(type);
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    for (int step = 1; step <= 3; ++step) {
      net->zero_grad();
      model->forward(2.0 * step * rank.rank, true, true).backward();
      rank.expect(net->a.grad().scalar_type() == type, "the type has changed");
      rank.expect_close(
          net->a.grad(), torch::full({7}, 1.0 * step), "gradient of a");
      rank.expect_close(
          net->b.grad(), torch::full({1000}, 2.0 * step), "gradient of b");
      rank.expect_close(
          net->c.grad(), torch::full({3, 5}, 4.0 * step), "gradient of c");
    }
  });
}

TEST_CASE("buffers come from rank 0 in each step", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    torch::nn::BatchNorm1d norm(3);
    norm->to(rank.device);
    DistributedDataParallel model(norm, Options().process_group(rank.group));
    torch::nn::BatchNorm1d first(3);  // plain layer with the batches of rank 0
    for (int step = 0; step < 3; ++step) {
      const auto rows = [&](int of) {
        return torch::rand({4, 3}, at::detail::createCPUGenerator(step)) + of;
      };
      model->forward(rows(rank.rank).to(rank.device)).sum().backward();
      first->forward(rows(0));
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    model->forward(torch::zeros({1, 3}, rank.device));
    for (const auto& item : first->named_buffers()) {
      rank.expect_close(
          norm->named_buffers()[item.key()], item.value(), item.key());
    }
  });
}

TEST_CASE("a shape that differs is named on all ranks over NCCL", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  std::vector<std::string> errors(2);
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    torch::nn::Linear net(3, 2 + rank.rank);
    net->to(rank.device);
    errors[rank.rank] = error_of(rank, [&] {
      DistributedDataParallel(net, Options().process_group(rank.group));
    });
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Catch::Contains("weight"));
  }
}

TEST_CASE("sparse gradients are refused over NCCL", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  std::vector<std::string> errors(2);
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(9, 2).sparse(true));
    table->to(rank.device);
    errors[rank.rank] = error_of(rank, [&] {
      DistributedDataParallel(table, Options().process_group(rank.group));
    });
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Catch::Contains("cannot all-reduce sparse ones") &&
                   Catch::Contains("the sparse parameter weight"));
  }
}

TEST_CASE("a rank that misses a gradient says so over NCCL", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  const auto errors = try_nccl_ranks(2, [](const NcclRank& rank) {
    Three net;
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    model->forward(1, true, true).backward();
    net->zero_grad();
    model->forward(1, rank.rank == 0, true).backward();
    net->a.grad().cpu();  // waits for the GPU
  });
  CHECK_THAT(errors[1], Catch::Contains("on rank 1: b;"));
}

TEST_CASE("ranks over NCCL stop after the same pass, however late one hears",
          "[gpu]") {
  const int size = GENERATE(2, 3);
  // The buckets of a code have no room for the votes.
  const bool has_code = GENERATE(false, true);
  if (!has_gpus(size)) {
    return;
  }
  INFO(any_schedule());
  std::vector<int> last(static_cast<size_t>(size));
  run_nccl_ranks(size, [&](const NcclRank& rank) {
    auto record = std::make_shared<detail::PeerState>();
    std::vector<int> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    const auto job = c10::make_intrusive<detail::MonitoredBackend>(
        rank.group,
        detail::GroupMembers{detail::kWorldGroup, all},
        std::chrono::minutes(1),
        record);
    auto net = make_net(0);
    net->to(rank.device);
    auto options = Options().process_group(job);
    if (has_code) {
      options.exchange(std::make_shared<QuantizedExchange>(job));
    }
    DistributedDataParallel model(net, options);
    auto& vote = record->stop_vote();
    const auto batch = part_of(batch_of(0, size), rank);
    int step = 0;
    while (!vote.is_agreed()) {
      rank.expect(++step < 40, "never heard of the stop");
      // The rank that receives the stop request first is delayed, and waits for
      // its GPU. The job's channel tells the others.
      const bool is_told = step == (rank.rank == 0 ? 3 : 8);
      if (is_told) {
        rank.meet();
      }
      model->forward(batch).sum().backward();
      if (is_told) {
        vote.vote_to_stop();
      }
      if (rank.rank == 0 || step % 10 == 0) {
        // As a program that prints the loss.
        torch::cuda::synchronize(rank.device.index());
      }
    }
    last[static_cast<size_t>(rank.rank)] = step;
    rank.meet();
  });
  CHECK(last.front() >= 5);
  CHECK(last == std::vector<int>(last.size(), last.front()));
}

TEST_CASE("nobody waits for a rank that threw", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  const auto errors = try_nccl_ranks(2, [](const NcclRank& rank) {
    auto net = make_net(0);
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    rank.expect(rank.rank == 0, "left before its forward");
    model->forward(part_of(batch_of(0, 2), rank)).sum().backward();
    net->parameters()[0].grad().cpu();  // waits for the GPU
  });
  CHECK_THAT(errors[1], Catch::Contains("left before its forward"));
}

}  // namespace ddp_test
}  // namespace ddp
