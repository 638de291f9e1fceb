#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <ATen/Context.h>
#include <c10/core/StreamGuard.h>

#include "ddp/buffer_hook.h"
#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/nn/checkpoint_activations.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"
#include "test/gpu/small_integers.h"

// Tests, over NCCL, options of the wrapper that behave differently on a GPU or
// copy memory that streams may still write.
namespace ddp {
namespace wrapper_test {

using test::any_schedule;
using test::fill_with_small_integers;
using test::half_of;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using test::small_integers;
using torch::Tensor;
using torch::nn::Linear;
using Options = DistributedDataParallelOptions;

Options tiny(const NcclRank& rank) {
  return Options()
      .process_group(rank.group)
      .first_bucket_cap_mb(1e-4)
      .bucket_cap_mb(1e-4);
}

TEST_CASE("reduce_dtype over NCCL trains as float where nothing is rounded",
          "[gpu]") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const auto make = [] {
      torch::nn::Sequential net(
          Linear(6, 16), torch::nn::ReLU(), Linear(16, 2));
      fill_with_small_integers(*net);
      return net;
    };
    auto plain = make();
    auto net = make();
    net->to(rank.device);
    const c10::StreamGuard guard(rank.new_stream());
    DistributedDataParallel model(
        net, tiny(rank).mixed_precision(MixedPrecision().reduce_dtype(dtype)));
    for (int step = 1; step <= 3; ++step) {
      const auto rows = small_integers({8, 6}, step, 2);
      const auto slopes = small_integers({8, 2}, 3 * step, 2);
      plain->zero_grad();
      net->zero_grad();
      (plain->forward(rows) * slopes).sum().div(2).backward();
      const auto output = model->forward(half_of(rows, rank));
      (output * half_of(slopes, rank)).sum().backward();
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        const auto grad = net->parameters()[i].grad();
        rank.expect(grad.scalar_type() == torch::kFloat, "a narrow gradient");
        rank.expect(grad.cpu().equal(plain->parameters()[i].grad()),
                    c10::str("step ", step, ": gradient ", i));
      }
    }
  });
}

struct ThreeImpl : torch::nn::Module {
  ThreeImpl() {
    for (const char* name : {"all", "some", "never"}) {
      register_parameter(name, torch::ones({40}));
    }
  }
  Tensor forward(double factor, bool with_some) {
    const auto all = named_parameters()["all"] * 1;
    const auto sum = with_some ? all + named_parameters()["some"] : all;
    return (sum * factor).sum();
  }
};
TORCH_MODULE(Three);

// Until the used map arrives, a rank knows only its own used parameters.
TEST_CASE("parameters that ranks leave out over NCCL", "[gpu]") {
  const bool by_graph = GENERATE(false, true);
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Three net;
    net->to(rank.device);
    DistributedDataParallel model(
        net,
        tiny(rank).find_unused_parameters(!by_graph).static_graph(by_graph));
    const auto parameters = net->named_parameters();
    for (int pass = 1; pass <= 5; ++pass) {
      net->zero_grad();
      // Rank 1 uses some; without a static graph only in every other pass.
      const bool is_used = by_graph || pass % 2 == 1;
      model->forward(2.0 * pass * (rank.rank + 1), is_used && rank.rank == 1)
          .backward();
      rank.expect_close(parameters["all"].grad(),
                        torch::full({40}, 3.0 * pass),
                        "what all have used");
      const auto some = parameters["some"].grad();
      if (is_used) {
        rank.expect_close(
            some, torch::full({40}, 2.0 * pass), "what one rank has used");
      }
      rank.expect(is_used == some.defined(), "what one rank has used");
      rank.expect(!parameters["never"].grad().defined(), "what none has used");
    }
  });
}

/// Draws a number from the GPU's generator and advances its state.
double draw(c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  const auto offset = generator.get_offset();
  generator.set_offset(offset + 4);
  return 1.0 + static_cast<double>(offset / 4 % 5);
}

TEST_CASE("a part that is computed again draws as it did on its GPU", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    Linear block(6, 6);
    fill_with_small_integers(*block);
    block->to(rank.device);
    DistributedDataParallel model(block, Options().process_group(rank.group));
    {
      // All ranks draw the same numbers, also after other tests.
      auto generator = at::globalContext().defaultGenerator(rank.device);
      const std::scoped_lock lock(generator.mutex());
      generator.set_offset(0);
    }
    for (int step = 1; step <= 3; ++step) {
      block->zero_grad();
      std::vector<double> drawn;
      const auto x =
          small_integers({4, 6}, step + rank.rank, 2).to(rank.device);
      const auto part = [&](const Tensor& y) {
        drawn.push_back(draw(rank.device));
        return block->forward(y) * drawn.back();
      };
      const auto loss = checkpoint_activations(part, x.requires_grad_()).sum();
      // A draw by other code between forward and recomputation.
      draw(rank.device);
      loss.backward();
      rank.expect(drawn.size() == 2 && drawn[0] == drawn[1], "another draw");
      rank.expect_close(
          block->bias.grad(), torch::full({6}, 4 * drawn[0]), "the bias");
    }
  });
}

struct BufferedImpl : torch::nn::Module {
  explicit BufferedImpl(int rank) {
    weight = register_parameter("weight", torch::ones({3}));
    mean = register_buffer("mean", torch::full({5}, rank + 1.0));
    count = register_buffer("count", torch::full({1}, rank, torch::kLong));
  }
  Tensor forward(double by) {
    mean.add_(by);
    count.add_(1);
    return weight.sum() * by;
  }
  Tensor weight, mean, count;
};
TORCH_MODULE(Buffered);

TEST_CASE("buffers are averaged over NCCL", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    Buffered net(rank.rank);
    net->to(rank.device);
    const c10::StreamGuard guard(rank.new_stream());
    DistributedDataParallel model(net,
                                  Options()
                                      .process_group(rank.group)
                                      .init_sync(false)
                                      .buffer_hook(average_buffers));
    double mean = 1.5;
    for (int step = 1; step <= 3; ++step) {
      model->forward(step * (rank.rank + 1.0)).backward();
      mean += 1.5 * step;
      rank.expect_close(net->mean, torch::full({5}, mean), "the mean");
      rank.expect(net->count.item<int64_t>() == step, "the count is rank 0's");
    }
  });
}

TEST_CASE("tensors of GPUs go to all, or to one", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    const c10::StreamGuard guard(rank.new_stream());
    const auto rows_of = [](int of) {
      return torch::full({2 + of, 3}, of + 5.0);
    };
    const auto mine = rows_of(rank.rank).to(rank.device) * 1;
    const auto all = all_gather(mine, rank.group);
    const auto one = gather(mine, 1, rank.group);
    const auto first = broadcast(mine, /*from=*/0, rank.group);
    rank.expect(all.size() == 2, "a tensor of each rank");
    rank.expect(one.size() == (rank.rank == 1 ? 2 : 0), "of rank 1 alone");
    for (size_t i = 0; i < all.size(); ++i) {
      rank.expect(all[i].device() == rank.device, "another device");
      rank.expect_close(all[i], rows_of(static_cast<int>(i)), "gathered");
    }
    for (size_t i = 0; i < one.size(); ++i) {
      rank.expect_close(one[i], rows_of(static_cast<int>(i)), "of all");
    }
    rank.expect_close(first, rows_of(0), "sent by rank 0");
  });
}

}  // namespace wrapper_test
}  // namespace ddp
