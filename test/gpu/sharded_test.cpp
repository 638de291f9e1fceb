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

void wait_for(c10::Stream waiter, c10::Stream other) {
  c10::Event so_far(other.device_type());
  so_far.record(other);
  so_far.block(waiter);
}

/// Branches of one parameter each. `forward` uses the weights of `uses` in
/// order, each on its stream. Meanwhile it makes tensors of the size of units
/// on the current stream.
struct BranchesImpl : torch::nn::Module {
  static constexpr int64_t kNumel = 8192;
  struct Use {
    size_t weight;
    c10::Stream stream;
  };

  explicit BranchesImpl(c10::Device device) {
    for (int i = 0; i < 8; ++i) {
      weights.push_back(
          register_parameter(c10::str("w", i), torch::full({kNumel}, i + 1.F)));
    }
    to(device);
  }
  std::vector<Tensor> forward(const Tensor& x) {
    const auto main = detail::current_stream(x.device());
    std::vector<Tensor> outputs;
    for (const auto& [weight, stream] : uses) {
      wait_for(stream, main);
    }
    for (const auto& [weight, stream] : uses) {
      {
        const c10::StreamGuard guard(stream);
        outputs.push_back(weights[weight] * x);
        detail::record_stream(x);
      }
      fill_free_memory();
    }
    for (const auto& [weight, stream] : uses) {
      wait_for(main, stream);
    }
    for (const auto& output : outputs) {
      detail::record_stream(output);
    }
    return outputs;
  }
  void use_all(c10::Stream stream) {
    uses.clear();
    for (size_t i = 0; i < weights.size(); ++i) {
      uses.push_back({i, stream});
    }
  }
  /// Writes to memory that the current stream may use again.
  void fill_free_memory() {
    const auto options = weights[0].options().requires_grad(false);
    for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
      for (const int64_t numel : {kNumel / 2, kNumel, kNumel, 2 * kNumel}) {
        others.push_back(torch::full({numel}, -1, options.dtype(dtype)));
      }
    }
  }
  bool has_kept_others() {
    for (const auto& other : std::exchange(others, {})) {
      if (!other.cpu().equal(torch::full_like(other, -1, torch::kCPU))) {
        return false;
      }
    }
    return true;
  }
  std::vector<Tensor> weights, others;
  std::vector<Use> uses;
};
TORCH_MODULE(Branches);

TEST_CASE("branches on two streams gather, read and sum units", "[gpu]") {
  const bool narrows = GENERATE(false, true);
  const double cap_mb = GENERATE(0.001, 0.06);  // units of 1 or 2 parameters
  run_on_streams([&](const NcclRank& rank) {
    Branches net(rank.device);
    auto options = FullyShardedDataParallelOptions()
                       .process_group(rank.group)
                       .unit_cap_mb(cap_mb);
    if (narrows) {
      options.param_dtype(torch::kBFloat16).reduce_dtype(torch::kFloat);
    } else {
      options.reduce_dtype(torch::kBFloat16);
    }
    FullyShardedDataParallel model(net, options);
    const auto main = detail::current_stream(rank.device);
    const auto side = rank.new_stream();
    const auto x =
        torch::full({BranchesImpl::kNumel},
                    rank.rank + 1,
                    torch::TensorOptions(rank.device)
                        .dtype(narrows ? torch::kBFloat16 : torch::kFloat)
                        .requires_grad(true));
    for (size_t i = 0; i < net->weights.size(); ++i) {
      net->uses.push_back({i, i % 2 == 0 ? main : side});
    }
    for (int step = 1; step <= 4; ++step) {
      model->zero_grad();
      x.mutable_grad().reset();
      const auto outputs = model->forward(x);
      wait_for(side, main);
      {
        const c10::StreamGuard guard(side);
        std::vector<Tensor> gradients;
        for (size_t i = 0; i < outputs.size(); ++i) {
          gradients.push_back(torch::full_like(outputs[i], i + 1));
        }
        torch::autograd::backward(outputs, gradients);
        net->fill_free_memory();
      }
      net->fill_free_memory();
      wait_for(main, side);
      // The backward pass reads the parameters, too: 1 * 1 + ... + 8 * 8.
      rank.expect(x.grad().cpu().equal(torch::full_like(x, 204, torch::kCPU)),
                  "gradient of the input");
      const auto leaves = model->parameters();
      for (size_t i = 0; i < outputs.size(); ++i) {
        const auto weight = net->uses[i].weight;
        const auto value = static_cast<double>((weight + 1) * (rank.rank + 1));
        rank.expect(outputs[i].cpu().equal(
                        torch::full_like(outputs[i], value, torch::kCPU)),
                    c10::str("output ", i));
        const auto grad = leaves[weight].grad().clone().cpu();
        rank.expect(grad.equal(torch::full_like(grad, 1.5 * (i + 1))),
                    c10::str("gradient ", i));
      }
      rank.expect(net->has_kept_others(), "other tensors");
    }
  });
}

FullyShardedDataParallelOptions small_units(const NcclRank& rank) {
  return FullyShardedDataParallelOptions()
      .process_group(rank.group)
      .unit_cap_mb(0.001);
}

TEST_CASE("another stream reads gradients and leaves that are released",
          "[gpu]") {
  run_on_streams([&](const NcclRank& rank) {
    Branches net(rank.device);
    const auto main = detail::current_stream(rank.device);
    const auto side = rank.new_stream();
    net->use_all(main);
    std::vector<Tensor> gradients, leaves;
    const auto copy_to = [&](std::vector<Tensor>& copies, Tensor tensor) {
      const c10::StreamGuard guard(side);
      copies.push_back(tensor.detach().clone());
      tensor.record_stream(side);
    };
    {
      FullyShardedDataParallel model(net, small_units(rank));
      for (int step = 1; step <= 3; ++step) {
        model->zero_grad();
        const auto x = torch::full({BranchesImpl::kNumel},
                                   step * (rank.rank + 1),
                                   torch::TensorOptions(rank.device));
        torch::stack(model->forward(x)).sum().backward();
        wait_for(side, main);
        for (const auto& leaf : model->parameters()) {
          copy_to(gradients, leaf.grad());
        }
      }
      for (const auto& leaf : model->parameters()) {
        copy_to(leaves, leaf);
      }
    }
    net->fill_free_memory();
    const c10::StreamGuard guard(side);
    const auto expect_value = [&](const Tensor& tensor, double value) {
      rank.expect(
          tensor.cpu().equal(torch::full_like(tensor, value, torch::kCPU)),
          c10::str("a tensor of ", value));
    };
    for (size_t i = 0; i < gradients.size(); ++i) {
      expect_value(gradients[i],
                   1.5 * static_cast<double>(i / leaves.size() + 1));
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      expect_value(leaves[i], static_cast<double>(i + 1));
    }
  });
}

TEST_CASE("gradients and whole parameters come from another stream", "[gpu]") {
  run_on_streams([&](const NcclRank& rank) {
    Branches net(rank.device);
    FullyShardedDataParallel model(net, small_units(rank));
    const auto main = detail::current_stream(rank.device);
    const auto side = rank.new_stream();
    const auto x = torch::full({BranchesImpl::kNumel},
                               rank.rank + 1,
                               torch::TensorOptions(rank.device));
    const auto pass = [&](c10::Stream stream) {
      Tensor loss;
      {
        const c10::StreamGuard guard(stream);
        net->use_all(stream);
        loss = torch::stack(model->forward(x)).sum();
      }
      loss.backward();
    };
    // The work of `side` runs now, that of `main` perhaps later. So `side` must
    // not read the tensors that passes on `main` have filled.
    std::vector<std::vector<Tensor>> of_passes;
    const auto fill_memory_of_side = [&] {
      const c10::StreamGuard guard(side);
      of_passes.push_back(std::exchange(net->others, {}));
      net->fill_free_memory();
      rank.expect(net->has_kept_others(), "other tensors");
    };
    wait_for(side, main);
    {
      const NoSyncGuard local(*model);
      pass(side);
    }
    pass(main);
    fill_memory_of_side();
    for (const auto& leaf : model->parameters()) {
      const auto grad = leaf.grad().clone().cpu();
      rank.expect(grad.equal(torch::full_like(grad, 3)), "gradient");
    }

    wait_for(side, main);
    std::optional<WholeParameters> whole;
    {
      const c10::StreamGuard guard(side);
      whole.emplace(*model);
    }
    wait_for(main, side);
    whole.reset();
    fill_memory_of_side();
    const auto leaves = model->parameters();
    for (size_t i = 0; i < leaves.size(); ++i) {
      const auto leaf = leaves[i].detach().clone().cpu();
      rank.expect(
          leaf.equal(torch::full_like(leaf, static_cast<double>(i + 1))),
          c10::str("leaf ", i));
    }
  });
}

}  // namespace sharded_test
}  // namespace ddp
