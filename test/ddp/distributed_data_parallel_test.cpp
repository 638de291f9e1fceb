#include "ddp/distributed_data_parallel.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <sstream>

#include "ddp/exchanges/cast_exchange.h"
#include "ddp/job/state_sync.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"
#include "test/support/random.h"

namespace ddp {
namespace distributed_data_parallel_test {

using test::FakeBackend;
using test::fill;
using test::Group;
using test::random;
using test::run_ranks;
using test::try_ranks;
using Options = DistributedDataParallelOptions;

Options over(const Group& group) {
  return Options().process_group(group);
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(1, 4, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    fc = register_module("fc", torch::nn::Linear(4 * 6 * 6, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc(torch::relu(norm(conv(x))).flatten(1));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

TEST_CASE("all ranks get rank 0's parameters and buffers", "[ddp]") {
  const int size = GENERATE(1, 2, 4);
  run_ranks(size, [](const Group& group) {
    Net net;
    fill(*net, 100 * group->getRank());
    net->norm->running_mean.fill_(group->getRank());
    DistributedDataParallel model(net, over(group));
    Net expected;
    fill(*expected, 0);
    for (const auto& item : expected->named_parameters()) {
      TORCH_CHECK(net->named_parameters()[item.key()].equal(item.value()));
    }
    TORCH_CHECK(net->norm->running_mean.eq(0).all().item<bool>());
  });
}

TEST_CASE("training over ranks is training on the whole batch", "[ddp]") {
  const int size = GENERATE(2, 3);
  const bool as_view = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    torch::nn::Sequential whole(
        torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
    torch::nn::Sequential part(
        torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
    fill(*whole, 1);
    fill(*part, group->getRank() == 0 ? 1 : 50);
    DistributedDataParallel model(part,
                                  over(group).gradient_as_bucket_view(as_view));
    torch::optim::SGD one(whole->parameters(),
                          torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD many(model->parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 20; ++step) {
      const auto batch = random(1000 + step, {4 * group->getSize(), 6});
      one.zero_grad();
      whole->forward(batch).pow(2).mean().backward();
      one.step();
      many.zero_grad();
      const auto mine = batch.chunk(group->getSize())[group->getRank()];
      model->forward(mine).pow(2).mean().backward();
      many.step();
    }
    for (const auto& item : whole->named_parameters()) {
      TORCH_CHECK(part->named_parameters()[item.key()].allclose(
                      item.value(), 1e-4, 1e-6),
                  item.key());
    }
  });
}

TEST_CASE("parameters stay equal bit for bit on all ranks", "[ddp]") {
  const int size = GENERATE(2, 3, 4);
  run_ranks(size, [](const Group& group) {
    Net net;
    fill(*net, group->getRank());
    DistributedDataParallel model(net, over(group).bucket_cap_mb(0.001));
    torch::optim::Adam optimizer(model->parameters(), 0.01);
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      const auto batch = random(step * 100 + group->getRank(), {3, 1, 8, 8});
      model->forward(batch).logsumexp(1).mean().backward();
      optimizer.step();
    }
    for (const auto& item : net->named_parameters()) {
      auto first = item.value().detach().clone();
      std::vector<torch::Tensor> shared{first};
      group->broadcast(shared)->wait();
      TORCH_CHECK(first.equal(item.value()), item.key());
    }
  });
}

TEST_CASE("batch-norm statistics follow rank 0 when asked", "[ddp]") {
  const bool broadcast = GENERATE(true, false);
  run_ranks(2, [&](const Group& group) {
    torch::nn::BatchNorm1d norm(2);
    DistributedDataParallel model(norm,
                                  over(group).broadcast_buffers(broadcast));
    // The batch has the mean rank + 1, so the running mean after one batch is
    // 0.1 * (rank + 1).
    const double mean = group->getRank() + 1.0;
    const auto batch = torch::tensor({{mean - 1, mean}, {mean + 1, mean}});
    auto loss = model->forward(batch).sum();
    TORCH_CHECK(norm->running_mean.allclose(torch::full({2}, 0.1 * mean)));
    loss.backward();
    const double first = 0.1 * (broadcast ? 1 : mean);
    TORCH_CHECK(norm->running_mean.allclose(torch::full({2}, first)));
    {
      NoSyncGuard no_sync(*model);
      model->forward(batch).sum().backward();
    }
    TORCH_CHECK(norm->running_mean.allclose(
        torch::full({2}, 0.9 * first + 0.1 * mean)));
    model->forward(batch).sum().backward();
    const double whose = broadcast ? 1 : mean;
    TORCH_CHECK(norm->running_mean.allclose(
        torch::full({2}, (0.81 + 0.9 + 1) * 0.1 * whose)));
  });
}

TEST_CASE("two forwards before one backward, with batch norm", "[ddp]") {
  run_ranks(2, [](const Group& group) {
    torch::nn::BatchNorm1d norm(2);
    DistributedDataParallel model(norm, over(group));
    const auto batch = random(group->getRank(), {4, 2});
    auto loss = model->forward(batch).pow(3).sum();
    loss = loss + model->forward(batch).pow(3).sum();
    loss.backward();
    TORCH_CHECK(norm->weight.grad().defined());
  });
}

TEST_CASE("no_sync gathers gradients and the pass after averages them",
          "[ddp]") {
  const bool as_view = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    torch::nn::Linear linear(3, 1);
    DistributedDataParallel model(linear,
                                  over(group).gradient_as_bucket_view(as_view));
    const double slope = group->getRank() + 1.0;
    const auto input = torch::full({1, 3}, slope);
    for (int round = 0; round < 3; ++round) {
      linear->zero_grad();
      {
        NoSyncGuard outer(*model);
        NoSyncGuard inner(*model);
        model->forward(input).sum().backward();
        model->forward(input).sum().backward();
      }
      TORCH_CHECK(
          linear->weight.grad().allclose(torch::full({1, 3}, 2 * slope)));
      model->forward(input).sum().backward();
      TORCH_CHECK(linear->weight.grad().allclose(torch::full({1, 3}, 4.5)));
    }
  });
}

TEST_CASE("guarded passes and no_grad forwards stay local", "[ddp]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  torch::nn::Linear linear(3, 1);
  DistributedDataParallel model(linear, over(backend));
  backend->take_calls();
  {
    const NoSyncGuard no_sync(*model);
    model->module()->forward(torch::ones({1, 3})).sum().backward();
  }
  {
    torch::NoGradGuard no_grad;
    model->forward(torch::ones({1, 3}));
  }
  CHECK(backend->take_calls().empty());
}

TEST_CASE("frozen and shared parameters", "[ddp]") {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      encoder = register_parameter("encoder", torch::ones({3, 3}));
      decoder = register_parameter("decoder", encoder);
      frozen = register_parameter("frozen", torch::ones({3}), false);
    }
    torch::Tensor forward(const torch::Tensor& x) {
      return torch::linear(torch::linear(x, encoder), decoder, frozen);
    }
    torch::Tensor encoder, decoder, frozen;
  };
  run_ranks(2, [](const Group& group) {
    auto tied = std::make_shared<TiedImpl>();
    DistributedDataParallel model(tied, over(group));
    const auto input = torch::full({1, 3}, group->getRank() + 1.0);
    model->forward(input).sum().backward();
    // Gradient of sum(W W x): for W of ones and x = c, each entry is 3 c + 3 c.
    TORCH_CHECK(tied->decoder.grad().allclose(torch::full({3, 3}, 9.0)),
                tied->decoder.grad());
    TORCH_CHECK(tied->encoder.is_same(tied->decoder));
    TORCH_CHECK(!tied->frozen.grad().defined());
  });
}

struct Output {
  torch::Tensor logits;
  std::optional<torch::Tensor> extra;
  int note = 0;
};

/// Returns its result wrapped in any type.
template <typename Wrap>
struct WrappingImpl : torch::nn::Module {
  WrappingImpl() : linear(register_module("linear", torch::nn::Linear(3, 1))) {}
  auto forward(const torch::Tensor& x, Wrap wrap) { return wrap(linear(x)); }
  torch::nn::Linear linear;
};

template <typename Wrap, typename Unwrap>
void check_output(Wrap wrap, Unwrap unwrap) {
  run_ranks(2, [&](const Group& group) {
    auto inner = std::make_shared<WrappingImpl<Wrap>>();
    DistributedDataParallel model(inner, over(group));
    auto output =
        model->forward(torch::full({1, 3}, group->getRank() + 1.0), wrap);
    unwrap(output).sum().backward();
    TORCH_CHECK(
        inner->linear->weight.grad().allclose(torch::full({1, 3}, 1.5)));
  });
}

TEST_CASE("forward may return anything that holds tensors", "[ddp]") {
  using torch::Tensor;
  check_output([](Tensor t) { return t; }, [](auto& o) { return o; });
  check_output([](Tensor t) { return std::vector<Tensor>{t}; },
               [](auto& o) { return o[0]; });
  check_output([](Tensor t) { return std::tuple(1, t, "text"); },
               [](auto& o) { return std::get<1>(o); });
  check_output([](Tensor t) { return std::pair(t, 2.0); },
               [](auto& o) { return o.first; });
  check_output([](Tensor t) { return std::optional<Tensor>(t); },
               [](auto& o) { return *o; });
  check_output(
      [](Tensor t) {
        return std::map<std::string, Tensor>{{"a", t}};
      },
      [](auto& o) { return o["a"]; });
  check_output(
      [](Tensor t) {
        return Output{t, t * 2, 1};
      },
      [](auto& o) { return o.logits; });
}

/// Runs `f` on `size` ranks and returns their error, which has to be the same
/// on every rank.
std::string common_error(int size, const std::function<void(const Group&)>& f) {
  const auto errors = try_ranks(size, f);
  for (const auto& error : errors) {
    CHECK(error == errors[0]);
  }
  return errors[0];
}

TEST_CASE("modules that differ are refused on all ranks, with the name",
          "[ddp][errors]") {
  const auto wrap = [](auto make) {
    return common_error(3, [&](const Group& group) {
      DistributedDataParallel model(make(group->getRank() == 2), over(group));
    });
  };
  using torch::nn::Linear;
  using torch::nn::Sequential;
  CHECK_THAT(
      wrap([](bool odd) {
        return Sequential(Linear(3, 3), Linear(3, odd ? 2 : 4));
      }),
      Catch::Contains("on ranks 0-1: parameter 1.weight of Float [4, 3], ") &&
          Catch::Contains("; on rank 2: parameter 1.weight of Float [2, 3], "));
  CHECK_THAT(wrap([](bool odd) {
               Linear linear(3, 3);
               linear->to(odd ? torch::kDouble : torch::kFloat);
               return linear;
             }),
             Catch::Contains("on ranks 0-1: parameter weight of Float ") &&
                 Catch::Contains("; on rank 2: parameter weight of Double "));
  CHECK_THAT(
      wrap([](bool odd) {
        Linear linear(3, 3);
        linear->bias.requires_grad_(!odd);
        return linear;
      }),
      Catch::Contains("on ranks 0-1: parameter bias of Float [3], strides "
                      "[1], requires_grad true, ") &&
          Catch::Contains("; on rank 2: parameter bias of Float [3], "
                          "strides [1], requires_grad false, "));
  CHECK_THAT(
      wrap([](bool odd) {
        torch::nn::Conv2d conv(2, 2, 3);
        if (odd) {
          conv->to(torch::kFloat);
          conv->weight.set_data(
              conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
        }
        return conv;
      }),
      Catch::Contains("on ranks 0-1: parameter weight of Float [2, 2, 3, "
                      "3], strides [18, 9, 3, 1], ") &&
          Catch::Contains("; on rank 2: parameter weight of Float [2, "
                          "2, 3, 3], strides [18, 1, 6, 2], "));
  CHECK_THAT(wrap([](bool odd) {
               return odd ? Sequential(Linear(3, 3))
                          : Sequential(Linear(3, 3), Linear(3, 3));
             }),
             Catch::Contains("on ranks 0-1: parameter 1.weight of ") &&
                 Catch::Contains("; on rank 2: nothing;"));
  CHECK_THAT(wrap([](bool odd) {
               Sequential net;
               net->push_back(odd ? "b" : "a", Linear(3, 3));
               return net;
             }),
             Catch::Contains("on ranks 0-1: parameter a.weight of ") &&
                 Catch::Contains("; on rank 2: parameter b.weight of "));
  CHECK_THAT(wrap([](bool odd) {
               return torch::nn::BatchNorm1d(
                   torch::nn::BatchNorm1dOptions(3).track_running_stats(!odd));
             }),
             Catch::Contains("on ranks 0-1: buffer running_mean of ") &&
                 Catch::Contains("; on rank 2: nothing;"));
}

TEST_CASE("options that differ are refused on all ranks, with the name",
          "[ddp][errors]") {
  const auto wrap = [](const std::function<void(Options&, const Group&)>& set) {
    return common_error(3, [&](const Group& group) {
      auto options = over(group);
      if (group->getRank() == 1) {
        set(options, group);
      }
      DistributedDataParallel model(torch::nn::Linear(3, 3), options);
    });
  };
  CHECK_THAT(wrap([](Options& options, const Group&) {
               options.find_unused_parameters(true);
             }),
             Catch::Contains("on ranks 0, 2: option find_unused_parameters is "
                             "false; on rank 1: option find_unused_parameters "
                             "is true;"));
  CHECK_THAT(
      wrap([](Options& options, const Group&) { options.static_graph(true); }),
      Catch::Contains("on ranks 0, 2: option static_graph is false"));
  CHECK_THAT(
      wrap([](Options& options, const Group&) {
        options.broadcast_buffers(false);
      }),
      Catch::Contains("on ranks 0, 2: option broadcast_buffers is true"));
  CHECK_THAT(wrap([](Options& options, const Group& group) {
               options.exchange(
                   std::make_shared<CastExchange>(group, torch::kBFloat16));
             }),
             Catch::Contains("option exchange is unset; on rank 1: option "
                             "exchange is a ddp::CastExchange;"));
  // These options may differ between ranks.
  run_ranks(2, [](const Group& group) {
    auto options = over(group);
    options.gradient_as_bucket_view(group->getRank() == 1);
    options.bucket_cap_mb(1 + group->getRank());
    torch::nn::Linear net(2, 2);
    DistributedDataParallel model(net, options);
    model(torch::ones({1, 2})).sum().backward();
    TORCH_CHECK(net->bias.grad().allclose(torch::ones({2})));
  });
}

TEST_CASE("state travels in messages of limited size", "[ddp]") {
  run_ranks(3, [](const Group& group) {
    std::vector<torch::Tensor> state;
    for (const int64_t size : {1, 40, 3, 0, 17, 100}) {
      for (const auto dtype : {torch::kFloat, torch::kLong}) {
        state.push_back(
            torch::full({size}, 10 * group->getRank() + size, dtype));
      }
    }
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    detail::broadcast_from(1, *counted, state, /*message_bytes=*/64);
    for (const auto& tensor : state) {
      TORCH_CHECK(tensor.eq(10 + tensor.numel()).all().item<bool>(), tensor);
    }
    const auto bytes = counted->take().broadcast;
    TORCH_CHECK(bytes == (1 + 40 + 3 + 17 + 100) * 12, bytes);
  });
}

TEST_CASE("tensors that share memory travel, also within one of them",
          "[ddp]") {
  run_ranks(2, [](const Group& group) {
    const auto memory = torch::full({2, 3}, group->getRank(), torch::kFloat);
    const auto row = memory[0].expand({4, 3});
    const auto turned = memory.t();
    detail::broadcast_from(1, *group, {row, turned, memory.slice(1, 1)});
    TORCH_CHECK(memory.eq(1).all().item<bool>(), memory);
  });
}

TEST_CASE("modules that cannot be wrapped", "[ddp][errors]") {
  CHECK_THROWS_WITH(DistributedDataParallel(torch::nn::ReLU()),
                    Catch::Contains("at least one parameter"));
  CHECK_THROWS_WITH(
      DistributedDataParallel(std::shared_ptr<torch::nn::LinearImpl>()),
      Catch::Contains("got an empty holder"));
  CHECK_THROWS_WITH(DistributedDataParallel(torch::nn::Linear(nullptr)),
                    Catch::Contains("got an empty holder"));
  torch::nn::Linear linear(1, 1);
  DistributedDataParallel model(linear);
  CHECK_THROWS_WITH(model->to(torch::kDouble),
                    Catch::Contains("convert the module, then wrap it"));
}

TEST_CASE("a world of one costs nothing and needs no branch", "[ddp]") {
  torch::nn::Linear linear(3, 1);
  DistributedDataParallel model(linear,
                                over(c10::make_intrusive<FakeBackend>(1)));
  CHECK(model->process_group() == nullptr);
  model->forward(torch::ones({1, 3})).sum().backward();
  CHECK(linear->weight.grad().allclose(torch::ones({1, 3})));
}

TEST_CASE("keys and printing are PyTorch's", "[ddp]") {
  torch::nn::Linear linear(3, 1);
  DistributedDataParallel model(linear);
  CHECK(model->named_parameters().keys() ==
        std::vector<std::string>{"module.weight", "module.bias"});
  std::ostringstream text;
  text << *model;
  CHECK(text.str() ==
        "ddp::DistributedDataParallel(\n"
        "  (module): torch::nn::Linear(in_features=3, out_features=1, "
        "bias=true)\n)");
}

TEST_CASE("a model may be wrapped again", "[ddp]") {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear linear(3, 1);
    for (int i = 0; i < 2; ++i) {
      linear->zero_grad();
      DistributedDataParallel model(linear, over(group));
      model->forward(torch::full({1, 3}, group->getRank() + 1.0))
          .sum()
          .backward();
      TORCH_CHECK(linear->weight.grad().allclose(torch::full({1, 3}, 1.5)));
    }
  });
}

}  // namespace distributed_data_parallel_test
}  // namespace ddp
