#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <torch/nn.h>
#include <torch/optim.h>

#include <c10/core/StreamGuard.h>

#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/optim/fused.h"
#include "ddp/tensors/streams.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"
#include "test/gpu/small_integers.h"

// FullyShardedDataParallel over NCCL beside DistributedDataParallel.
namespace ddp {
namespace sharded_test {

using test::any_schedule;
using test::fill_with_small_integers;
using test::half_of;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using test::small_integers;
using torch::Tensor;
using torch::nn::Linear;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 5; ++i) {
      layers->push_back(Linear(80, 80));
    }
    register_module("layers", layers);
    scale = register_parameter("scale", torch::ones({80}));
    mask = register_buffer("mask", torch::ones({80}));
    fill_with_small_integers(*this);
    const torch::NoGradGuard no_grad;
    for (auto& weight : layers->parameters()) {
      weight.div_(8);  // tanh must not be flat
    }
    scale.fill_(0.75);
  }
  Tensor forward(Tensor x) {
    for (auto& layer : *layers) {
      x = torch::tanh(layer.forward<Tensor>(x) * scale);
    }
    return x * mask;
  }
  torch::nn::Sequential layers;
  Tensor scale, mask;
};
TORCH_MODULE(Net);

/// Runs `body` on two ranks, each on a stream of its own GPU.
void run_on_streams(const std::function<void(const NcclRank&)>& body) {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const c10::StreamGuard guard(rank.new_stream());
    body(rank);
  });
}

TEST_CASE("shards over NCCL train bit for bit as DistributedDataParallel",
          "[gpu]") {
  const bool reshards = GENERATE(true, false);
  run_on_streams([&](const NcclRank& rank) {
    Net plain, net;
    plain->to(rank.device);
    net->to(rank.device);
    plain->mask.add_(rank.rank);  // until rank 0's values arrive
    net->mask.add_(rank.rank);
    DistributedDataParallel a(
        plain, DistributedDataParallelOptions().process_group(rank.group));
    FullyShardedDataParallel b(net,
                               FullyShardedDataParallelOptions()
                                   .process_group(rank.group)
                                   .unit_cap_mb(0.02)
                                   .reshard_after_forward(reshards));
    FusedAdamW optimizer_a(a->parameters(), torch::optim::AdamWOptions(0.01));
    FusedAdamW optimizer_b(b->parameters(), torch::optim::AdamWOptions(0.01));
    for (int step = 1; step <= 4; ++step) {
      const auto rows = small_integers({8, 80}, step, 4) * 0.1;
      const auto train = [&](auto& model, auto& optimizer) {
        optimizer.zero_grad();
        auto loss = model->forward(half_of(rows, rank)).square().sum();
        loss.backward();
        optimizer.step();
        const torch::NoGradGuard no_grad;
        return torch::stack(
            {loss.detach(), model->forward(half_of(rows, rank)).sum()});
      };
      const auto losses = train(a, optimizer_a);
      const auto got = train(b, optimizer_b);
      rank.expect(got.equal(losses),
                  c10::str("step ", step, ": ", got, " instead of ", losses));
    }
    const WholeParameters whole(*b);
    for (const auto& item : plain->named_parameters()) {
      rank.expect(net->named_parameters()[item.key()].equal(item.value()),
                  item.key());
    }
  });
}

TEST_CASE("shards over NCCL gather bfloat16 and step float32", "[gpu]") {
  using Dtype = std::optional<c10::ScalarType>;
  const auto sums = GENERATE(Dtype(), Dtype(torch::kFloat));
  run_on_streams([&](const NcclRank& rank) {
    Net narrow, net;
    narrow->to(rank.device, torch::kBFloat16);
    narrow->mask.set_data(narrow->mask.to(torch::kFloat));
    net->to(rank.device);
    std::vector<Tensor> masters;
    for (const auto& parameter : net->parameters()) {
      masters.push_back(parameter.detach().clone());
    }
    FullyShardedDataParallel model(net,
                                   FullyShardedDataParallelOptions()
                                       .process_group(rank.group)
                                       .unit_cap_mb(0.02)
                                       .param_dtype(torch::kBFloat16)
                                       .reduce_dtype(sums));
    FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
    FusedAdamW reference(masters, torch::optim::AdamWOptions(0.01));
    for (int step = 1; step <= 4; ++step) {
      const auto x = half_of(small_integers({8, 80}, step, 4) * 0.1, rank);
      optimizer.zero_grad();
      const auto loss = model->forward(x).square().sum();
      loss.backward();
      optimizer.step();
      narrow->zero_grad();
      const auto expected =
          narrow->forward(x.to(torch::kBFloat16)).square().sum();
      expected.backward();
      rank.expect(loss.equal(expected),
                  c10::str("step ", step, ": ", loss, ", not ", expected));
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < masters.size(); ++i) {
        const auto grad = (narrow->parameters()[i].grad() / 2)
                              .to(sums.value_or(torch::kBFloat16));
        masters[i].mutable_grad() =
            reduce_tensor(grad, Reduction::sum, rank.group).to(torch::kFloat);
      }
      reference.step();
      for (size_t i = 0; i < masters.size(); ++i) {
        narrow->parameters()[i].copy_(masters[i]);
      }
    }
    const auto leaves = model->parameters();
    for (size_t i = 0; i < masters.size(); ++i) {
      const auto parts = all_gather(leaves[i].detach().flatten(), rank.group);
      rank.expect(torch::cat(parts).equal(masters[i].flatten()),
                  c10::str("parameter ", i));
    }
  });
}

/// Two branches, the second one on a stream of its own. The layers of one
/// number are in one unit.
struct BranchesImpl : torch::nn::Module {
  explicit BranchesImpl(c10::Device device)
      : side(c10::cuda::getStreamFromPool(false, device.index()).unwrap()) {
    for (int i = 0; i < 5; ++i) {
      first->push_back(Linear(80, 80));
      second->push_back(Linear(80, 80));
      register_module(c10::str("first", i), first->ptr(i));
      register_module(c10::str("second", i), second->ptr(i));
    }
    fill_with_small_integers(*this);
    const torch::NoGradGuard no_grad;
    for (auto& weight : parameters()) {
      weight.div_(8);  // as above
    }
    to(device);
  }
  Tensor forward(const Tensor& x) {
    const auto main = detail::current_stream(x.device());
    Tensor a = x;
    Tensor b = x;
    wait_for(side, main);
    detail::record_stream(x);
    for (size_t i = 0; i < first->size(); ++i) {
      a = torch::tanh(first[i]->as<Linear>()->forward(a));
      const c10::StreamGuard guard(side);
      b = torch::tanh(second[i]->as<Linear>()->forward(b));
    }
    wait_for(main, side);
    detail::record_stream(b);
    return a + b;
  }
  static void wait_for(c10::Stream waiter, c10::Stream other) {
    c10::Event so_far(other.device_type());
    so_far.record(other);
    so_far.block(waiter);
  }
  c10::Stream side;
  torch::nn::Sequential first, second;
};
TORCH_MODULE(Branches);

TEST_CASE("branches on two streams read the parameters of one unit", "[gpu]") {
  const bool narrows = GENERATE(false, true);
  run_on_streams([&](const NcclRank& rank) {
    const auto dtype = narrows ? torch::kBFloat16 : torch::kFloat;
    Branches plain(rank.device);
    Branches net(rank.device);
    plain->to(dtype);
    DistributedDataParallel a(
        plain, DistributedDataParallelOptions().process_group(rank.group));
    FullyShardedDataParallel b(net,
                               FullyShardedDataParallelOptions()
                                   .process_group(rank.group)
                                   .unit_cap_mb(0.051)
                                   .param_dtype(dtype)
                                   .reduce_dtype(dtype));
    for (int step = 1; step <= 3; ++step) {
      const auto x = half_of(small_integers({8, 80}, step, 4) * 0.1, rank);
      const auto gradient_of = [&](auto& model) {
        const auto input = x.clone().to(dtype).requires_grad_();
        model->zero_grad();
        const auto output = model->forward(input);
        output.sum().backward();
        return torch::stack({output.detach(), input.grad()});
      };
      const auto expected = gradient_of(a);
      rank.expect(gradient_of(b).equal(expected), c10::str("step ", step));
      for (const auto& item : b->named_shards()) {
        const auto parts =
            all_gather(item.value().grad().clone().flatten(), rank.group);
        const auto& grad = plain->named_parameters()[item.key()].grad();
        rank.expect(torch::cat(parts).equal(grad.flatten().to(torch::kFloat)),
                    c10::str("gradient of ", item.key(), ", step ", step));
      }
    }
  });
}

/// Parameters of a unit each. `forward` uses those of `uses`, each on its
/// stream, and makes tensors of the size of each unit on the current stream
/// meanwhile.
struct ManyStreamsImpl : torch::nn::Module {
  static constexpr int64_t kNumel = 8192;

  explicit ManyStreamsImpl(c10::Device device) {
    for (int i = 0; i < 4; ++i) {
      weights.push_back(
          register_parameter(c10::str("w", i), torch::full({kNumel}, i + 1.F)));
    }
    to(device);
  }
  std::vector<Tensor> forward(const Tensor& x) {
    const auto main = detail::current_stream(x.device());
    std::vector<Tensor> outputs;
    for (const auto& [index, stream] : uses) {
      BranchesImpl::wait_for(stream, main);
    }
    for (const auto& [index, stream] : uses) {
      {
        const c10::StreamGuard guard(stream);
        outputs.push_back(weights[index] * x);
        detail::record_stream(x);
      }
      fill_free_memory();
    }
    for (const auto& [index, stream] : uses) {
      BranchesImpl::wait_for(main, stream);
    }
    for (const auto& output : outputs) {
      detail::record_stream(output);
    }
    return outputs;
  }
  /// Writes to memory that the current stream may use again.
  void fill_free_memory() {
    const auto options = weights[0].options().requires_grad(false);
    for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
      for (const int64_t numel : {kNumel / 2, kNumel, kNumel}) {
        others.push_back(torch::full({numel}, 7, options.dtype(dtype)));
      }
    }
  }
  bool has_kept_others() {
    for (const auto& other : std::exchange(others, {})) {
      if (!other.cpu().equal(torch::full_like(other, 7, torch::kCPU))) {
        return false;
      }
    }
    return true;
  }
  std::vector<Tensor> weights, others;
  std::vector<std::pair<size_t, c10::Stream>> uses;
};
TORCH_MODULE(ManyStreams);

TEST_CASE("memory of gathers and sums outlives them on all streams", "[gpu]") {
  const bool narrows = GENERATE(false, true);
  run_on_streams([&](const NcclRank& rank) {
    ManyStreams net(rank.device);
    auto options = FullyShardedDataParallelOptions()
                       .process_group(rank.group)
                       .unit_cap_mb(0.001);
    if (narrows) {
      options.param_dtype(torch::kBFloat16).reduce_dtype(torch::kFloat);
    } else {
      options.reduce_dtype(torch::kBFloat16);
    }
    FullyShardedDataParallel model(net, options);
    const auto main = detail::current_stream(rank.device);
    const auto side = rank.new_stream();
    net->uses = {{0, main}, {1, side}, {2, main}, {3, side}};
    const auto x =
        torch::full({ManyStreamsImpl::kNumel},
                    rank.rank + 1,
                    torch::TensorOptions(rank.device)
                        .dtype(narrows ? torch::kBFloat16 : torch::kFloat));
    for (int step = 1; step <= 4; ++step) {
      model->zero_grad();
      const auto outputs = model->forward(x);
      BranchesImpl::wait_for(side, main);
      {
        const c10::StreamGuard guard(side);
        std::vector<Tensor> ones;
        for (const auto& output : outputs) {
          ones.push_back(torch::ones_like(output));
        }
        torch::autograd::backward(outputs, ones);
        net->fill_free_memory();
      }
      net->fill_free_memory();
      BranchesImpl::wait_for(main, side);
      for (size_t i = 0; i < outputs.size(); ++i) {
        const auto value = static_cast<double>((i + 1) * (rank.rank + 1));
        rank.expect(outputs[i].cpu().equal(
                        torch::full_like(outputs[i], value, torch::kCPU)),
                    c10::str("output ", i));
      }
      rank.expect(net->has_kept_others(), "other tensors");
      for (const auto& leaf : model->parameters()) {
        const auto grad = leaf.grad().clone().cpu();
        rank.expect(grad.equal(torch::full_like(grad, 1.5)), "gradient");
      }
    }
  });
}

}  // namespace sharded_test
}  // namespace ddp
