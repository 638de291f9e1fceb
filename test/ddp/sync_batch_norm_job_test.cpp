// SyncBatchNorm layers under a wrapper in a job, each rank a process. Their
// collectives must not meet collectives of the gradients. Over plain Gloo,
// because the sums of gradients in shared memory have a channel of their own.
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/nn/sync_batch_norm.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"

namespace ddp {
namespace sync_batch_norm_job_test {

using Catch::Contains;
using test::RankEnd;
using torch::Tensor;
using torch::nn::Linear;
using torch::nn::LinearOptions;
using Group = c10::intrusive_ptr<c10d::Backend>;
using Options = DistributedDataParallelOptions;

constexpr int64_t kChannels = 64;

/// A net with a head that a rank may leave out. The head's gradients fill a
/// bucket that is as large as the message of the SyncBatchNorm's backward.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t outputs)
      : head(LinearOptions(kChannels, outputs).bias(false)) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("head", head);
    const torch::NoGradGuard no_grad;
    double seed = 0;
    for (auto& parameter : parameters()) {
      const auto places = torch::arange(parameter.numel(), torch::kDouble);
      parameter.copy_((places * 0.7 + ++seed).sin().view(parameter.sizes()) /
                      8);
    }
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x, bool uses_head) {
    const auto h = norm(first(x));
    return uses_head ? head(h).square().mean() : h.pow(3).mean();
  }
  Linear first{kChannels, kChannels};
  SyncBatchNorm norm{kChannels};
  Linear head;
};
TORCH_MODULE(Net);
using Model = DistributedDataParallel<NetImpl>;

ProcessGroupOptions plain_gloo() {
  return ProcessGroupOptions().backend("gloo").shared_memory(false).timeout(
      std::chrono::minutes(10));
}

/// Options with a bucket for each layer.
Options options_over(const Group& group) {
  return Options().process_group(group).bucket_cap_mb(4e-4).first_bucket_cap_mb(
      4e-4);
}

Tensor input_of(int rank, int pass) {
  const auto places = torch::arange(8 * kChannels, torch::kDouble);
  return (places * 0.3 + rank + 10 * pass)
      .sin()
      .view({8, kChannels})
      .to(torch::kDouble);
}

/// Returns the gradients of one process with the batches of all ranks.
std::vector<Tensor> expected_gradients(const NetImpl& net,
                                       const std::vector<bool>& uses_head,
                                       int pass) {
  std::vector<Tensor> leaves;
  for (const auto& parameter : net.parameters()) {
    leaves.push_back(parameter.detach().clone().requires_grad_());
  }
  const auto ranks = static_cast<int64_t>(uses_head.size());
  std::vector<Tensor> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(input_of(rank, pass));
  }
  const auto h =
      torch::batch_norm(torch::linear(torch::cat(inputs), leaves[0], leaves[1]),
                        leaves[2],
                        leaves[3],
                        {},
                        {},
                        /*training=*/true,
                        /*momentum=*/0,
                        net.norm->options.eps(),
                        /*cudnn_enabled=*/false);
  Tensor loss = torch::zeros({}, torch::kDouble);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto part = h.narrow(0, 8 * rank, 8);
    loss = loss + (uses_head[static_cast<size_t>(rank)]
                       ? torch::linear(part, leaves[4]).square().mean()
                       : part.pow(3).mean());
  }
  (loss / static_cast<double>(ranks)).backward();
  std::vector<Tensor> gradients;
  for (const auto& leaf : leaves) {
    gradients.push_back(leaf.grad());
  }
  return gradients;
}

/// Makes passes; in the third the last rank leaves the head out.
void expect_mean_gradients(Model& model, NetImpl& net, const Group& group) {
  const int rank = group->getRank();
  for (int pass = 1; pass <= 4; ++pass) {
    std::vector<bool> uses_head(static_cast<size_t>(group->getSize()), true);
    uses_head.back() = pass != 3;
    model->zero_grad();
    model(input_of(rank, pass), uses_head[static_cast<size_t>(rank)])
        .backward();
    const auto expected = expected_gradients(net, uses_head, pass);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto& gradient = net.parameters()[i].grad();
      TORCH_CHECK(gradient.allclose(expected[i], 1e-9, 1e-12),
                  "pass ",
                  pass,
                  ", gradient ",
                  i,
                  " is off by ",
                  (gradient - expected[i]).abs().max().item<double>());
    }
  }
}

TEST_CASE("a rank may leave out a head behind a SyncBatchNorm",
          "[syncbn][job]") {
  const bool is_group_given = GENERATE(false, true);
  const auto ends = test::run_rank_processes(3, [is_group_given](int rank) {
    init_process_group(plain_gloo());
    // A bucket of the head alone has as many elements as a message.
    Net net(2);
    if (is_group_given) {
      net->norm->set_process_group(process_group());
    }
    Model model(net,
                options_over(process_group()).find_unused_parameters(true));
    expect_mean_gradients(model, *net, process_group());
    if (const auto pair = new_group({2, 0})) {
      model->update_process_group(pair);
      expect_mean_gradients(model, *net, pair);
    }
    if (rank != 1) {
      // The same layers within a second wrapper, over the same group.
      Net other(2);
      Model second(other, options_over(model->process_group()));
      second(input_of(rank, 1), true).backward();
    }
    destroy_process_group();
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.signal == 0);
  }
}

// A rank without the head starts its buckets after the SyncBatchNorm, the
// others before.
TEST_CASE("an exchange that compares the ranks lets a rank leave out a head",
          "[syncbn][job][exchange]") {
  const auto ends = test::run_rank_processes(3, [](int rank) {
    init_process_group(plain_gloo());
    const auto group = process_group();
    const auto exchange =
        std::make_shared<PowerSGD>(group, PowerSGDOptions().start_after(0));
    Net net(2);
    Model model(
        net,
        options_over(group).find_unused_parameters(true).exchange(exchange));
    for (int pass = 1; pass <= 4; ++pass) {
      model->zero_grad();
      model(input_of(rank, pass), pass < 3 || rank != 2).backward();
      exchange->load_state_dict(exchange->state_dict());
    }
    destroy_process_group();
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.signal == 0);
  }
}

TEST_CASE("a missing head behind a SyncBatchNorm is an error with its name",
          "[syncbn][job][errors]") {
  const auto outputs = GENERATE(2, 64);
  const auto ends = test::run_rank_processes(2, [outputs](int rank) {
    init_process_group(plain_gloo());
    Net net(outputs);
    Model model(net, options_over(process_group()));
    for (int pass = 1; pass <= 3; ++pass) {
      model(input_of(rank, pass), pass != 3 || rank == 0).backward();
    }
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error, Contains("head.weight"));
    CHECK(end.signal == 0);
  }
}

}  // namespace sync_batch_norm_job_test
}  // namespace ddp
