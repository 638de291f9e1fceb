// Compares the bytes that a rank passes to its backend in each step with the
// sizes of its tensors.
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/join.h"
#include "ddp/nn/sync_batch_norm.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "ddp/reduce/detail/pass_mark.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace step_traffic_test {

using test::Group;
using test::run_ranks;
using torch::Tensor;

constexpr int64_t kFloat = sizeof(float);

void expect(const test::Traffic& bytes,
            const test::Traffic& expected,
            const char* when) {
  const auto values = [](const test::Traffic& traffic) {
    return std::vector<int64_t>{traffic.all_reduce,
                                traffic.broadcast,
                                traffic.all_gather,
                                traffic.reduce_scatter,
                                traffic.all_to_all,
                                traffic.sent};
  };
  TORCH_CHECK(values(bytes) == values(expected),
              when,
              ": expected ",
              values(expected),
              ", but got ",
              values(bytes));
}

/// 7 x 5 weights, 7 biases, and a buffer of 11 elements.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("layer", layer);
    buffer = register_buffer("buffer", torch::zeros({11}));
  }
  Tensor forward(const Tensor& x) { return layer(x); }
  torch::nn::Linear layer{5, 7};
  Tensor buffer;
};
TORCH_MODULE(Net);

/// A rank, and a backend that counts its wrapper's bytes.
struct Rank {
  explicit Rank(const Group& group)
      : counted(c10::make_intrusive<test::CountingBackend>(group)),
        model(net, DistributedDataParallelOptions().process_group(counted)) {}
  void pass() { model->forward(torch::ones({2, 5})).sum().backward(); }

  c10::intrusive_ptr<test::CountingBackend> counted;
  Net net;
  DistributedDataParallel<NetImpl> model;
};

constexpr int64_t kParameters = 7 * 5 + 7;
constexpr int64_t kBuffers = 11;

/// Returns the bytes of a pass: the gradients with the status, and the
/// buffers.
test::Traffic pass_bytes() {
  test::Traffic bytes;
  bytes.all_reduce = (kParameters + detail::kMarkNumel) * kFloat;
  bytes.broadcast = kBuffers * kFloat;
  return bytes;
}

TEST_CASE("a rank without inputs sends as much as a pass", "[traffic][join]") {
  const bool by_all = GENERATE(false, true);
  run_ranks(3, [&](const Group& group) {
    Rank rank(group);
    rank.pass();  // the ranks agree on a plan
    rank.counted->take();
    rank.pass();
    expect(rank.counted->take(), pass_bytes(), "a pass");

    Join join({*rank.model},
              JoinOptions().divide_by_initial_world_size(by_all));
    auto turn = pass_bytes();
    turn.all_gather = sizeof(int);  // whether this rank has inputs
    rank.counted->take();
    for (int step = 0; step < 1 + 2 * group->getRank(); ++step) {
      rank.net->zero_grad();
      rank.pass();
      expect(rank.counted->take(), turn, "a pass in a Join");
    }
    join.finish([&] { expect(rank.counted->take(), turn, "a shadow pass"); });
    test::Traffic end;
    end.all_gather = sizeof(int);
    end.broadcast = (kParameters + kBuffers) * kFloat;
    expect(rank.counted->take(), end, "the end of a Join");
  });
}

TEST_CASE("local passes before a reduced pass send nothing",
          "[traffic][no_sync]") {
  const int k = GENERATE(1, 3, 4);
  run_ranks(2, [k](const Group& group) {
    Rank rank(group);
    rank.pass();  // the ranks agree on a plan
    for (int step = 0; step < 2; ++step) {
      rank.net->zero_grad();
      rank.counted->take();
      {
        const NoSyncGuard no_sync(*rank.model);
        for (int i = 1; i < k; ++i) {
          rank.pass();
        }
      }
      expect(rank.counted->take(), {}, "passes under a NoSyncGuard");
      rank.pass();
      expect(rank.counted->take(), pass_bytes(), "the pass after them");
      TORCH_CHECK(rank.net->layer->bias.grad().eq(2 * k).all().item<bool>());
    }
  });
}

TEST_CASE("a SyncBatchNorm sends a row of its channels each way",
          "[traffic][sync_batch_norm]") {
  const int64_t channels = GENERATE(1, 6);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  run_ranks(3, [&](const Group& group) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    SyncBatchNorm norm(channels, counted);
    norm->to(dtype);
    const auto bytes =
        static_cast<int64_t>(torch::elementSize(dtype)) * channels;
    const auto input = [&] {
      return torch::ones({2 + group->getRank(), channels, 4}, dtype);
    };
    norm->forward(input());  // compares the layers
    counted->take();
    const auto trained = input().requires_grad_();
    const auto output = norm->forward(trained);
    test::Traffic forward;  // mean, variance, and one count
    forward.all_gather =
        2 * bytes + static_cast<int64_t>(torch::elementSize(dtype));
    expect(counted->take(), forward, "forward");
    output.sum().backward();
    test::Traffic backward;  // two sums
    backward.all_reduce = 2 * bytes;
    expect(counted->take(), backward, "backward");

    norm->forward(input()).sum().backward();  // gradient of the weight only
    expect(counted->take(), forward, "a first layer");
    norm->eval();
    norm->forward(trained).sum().backward();
    expect(counted->take(), {}, "evaluation");
  });
}

TEST_CASE("a step with a ZeroRedundancyOptimizer sends each parameter twice",
          "[traffic][zero]") {
  run_ranks(3, [](const Group& group) {
    Rank rank(group);
    ZeroRedundancyOptimizer optimizer(
        rank.model->parameters(),
        [](auto groups) {
          return std::make_unique<torch::optim::Adam>(groups);
        },
        Group(rank.counted));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      rank.counted->take();
      rank.pass();
      if (step > 0) {  // the first step makes the plan
        expect(rank.counted->take(), pass_bytes(), "a pass");
      }
      rank.counted->take();
      optimizer.step();
      test::Traffic bytes;
      bytes.broadcast = kParameters * kFloat;
      expect(rank.counted->take(), bytes, "a step");
    }
    rank.counted->take();
    optimizer.state_dict();
    // The owner's first and second moments and their counts, as serialized
    // text.
    TORCH_CHECK(rank.counted->take().broadcast >= 2 * kParameters * kFloat);
  });
}

}  // namespace step_traffic_test
}  // namespace ddp
