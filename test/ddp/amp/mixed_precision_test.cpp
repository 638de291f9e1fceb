#include "ddp/amp/mixed_precision.h"

#include <sstream>

#include <torch/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "ddp/checkpoint.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/nn/checkpoint_activations.h"
#include "ddp/traffic.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace mixed_precision_test {

using Catch::Contains;
using test::Group;
using test::run_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

constexpr auto kFloat = torch::kFloat;
constexpr auto kNarrow = torch::kBFloat16;

MixedPrecision narrow() {
  return MixedPrecision().param_dtype(kNarrow);
}

Options precise(const MixedPrecision& precision, const Group& group = nullptr) {
  return Options().mixed_precision(precision).process_group(group);
}

/// Returns numbers that bfloat16 has to round.
Tensor numbers(at::IntArrayRef sizes, int64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator, kFloat);
}

void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(numbers(parameter.sizes(), ++seed));
  }
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
    fill(*this);
  }
  Tensor forward(const Tensor& x) { return last(torch::tanh(norm(first(x)))); }
  torch::nn::Linear first{3, 4};
  torch::nn::BatchNorm1d norm{4};
  torch::nn::Linear last{4, 2};
};
TORCH_MODULE(Net);

/// Returns a copy of the net in `dtype`, which computes the expected forward.
Net converted(const Net& net, torch::Dtype dtype) {
  const torch::NoGradGuard no_grad;
  Net copy;
  for (const auto& item : net->named_parameters()) {
    copy->named_parameters()[item.key()].copy_(item.value());
  }
  for (const auto& item : net->named_buffers()) {
    copy->named_buffers()[item.key()].copy_(item.value());
  }
  copy->to(dtype);
  return copy;
}

bool is_near(const Tensor& a, const Tensor& b, bool exactly) {
  return a.scalar_type() == b.scalar_type() &&
         (exactly ? torch::equal(a, b) : torch::allclose(a, b, 0.02, 1e-3));
}

TEST_CASE("a forward computes in param_dtype, gradients are the parameters'",
          "[mixed]") {
  const int size = GENERATE(1, 2, 3);
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  const bool adds_up_in_float = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    Net net;
    auto precision = MixedPrecision().param_dtype(dtype).buffer_dtype(dtype);
    if (adds_up_in_float) {
      precision.reduce_dtype(kFloat);
    }
    DistributedDataParallel model(net, precise(precision, group));
    torch::optim::SGD optimizer(model->parameters(), 0.125);
    for (int64_t step = 0; step < 3; ++step) {
      const auto x = numbers({5, 3}, 10 * step + group->getRank());
      auto plain = converted(net, dtype);
      const auto expected = plain(x.to(dtype));
      const auto output = model(x);
      TORCH_CHECK(is_near(output, expected, /*exactly=*/true), output);

      optimizer.zero_grad();
      output.to(kFloat).pow(2).sum().backward();
      expected.to(kFloat).pow(2).sum().backward();
      const auto gradients = plain->parameters();
      for (size_t i = 0; i < gradients.size(); ++i) {
        // In a ring of three ranks the order of additions depends on an
        // element's place.
        std::vector<Tensor> mean{gradients[i].grad().to(kFloat) / size};
        if (size > 1) {
          mean[0] = mean[0].to(adds_up_in_float ? kFloat : dtype);
          group->allreduce(mean)->wait();
        }
        const auto parameter = net->parameters()[i];
        TORCH_CHECK(parameter.scalar_type() == kFloat);
        TORCH_CHECK(is_near(parameter.grad(), mean[0].to(kFloat), size < 3),
                    parameter.grad(),
                    mean[0]);
      }
      optimizer.step();
    }
  });
}

TEST_CASE("sparse gradients come back in the parameter's dtype", "[mixed]") {
  const int size = GENERATE(1, 2);
  run_ranks(size, [&](const Group& group) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2)
                                   ._weight(torch::ones({4, 2}))
                                   .sparse(true));
    DistributedDataParallel model(table, precise(narrow(), group));
    const auto rows = model(torch::tensor({0L, 0L, 1L + group->getRank()}));
    TORCH_CHECK(rows.scalar_type() == kNarrow);
    (rows * 2).sum().backward();
    const auto& grad = table->weight.grad();
    TORCH_CHECK(grad.is_sparse() && grad.scalar_type() == kFloat, grad);
    const auto last = size == 1 ? torch::tensor({4.F, 2.F, 0.F, 0.F})
                                : torch::tensor({4.F, 1.F, 1.F, 0.F});
    TORCH_CHECK(torch::equal(grad.to_dense(), last.view({4, 1}).expand({4, 2})),
                grad);
  });
}

/// A function that returns no gradient for its input.
struct NoGradient : torch::autograd::Function<NoGradient> {
  static Tensor forward(torch::autograd::AutogradContext* /*context*/,
                        const Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      const torch::autograd::variable_list& /*gradients*/) {
    return {Tensor()};
  }
};

struct HalfUsedImpl : torch::nn::Module {
  HalfUsedImpl() {
    used = register_parameter("used", torch::ones({2}));
    unused = register_parameter("unused", torch::ones({2}));
  }
  Tensor forward(const Tensor& x) {
    return x * used + NoGradient::apply(unused * 2);
  }
  Tensor used, unused;
};
TORCH_MODULE(HalfUsed);

TEST_CASE("what gets no gradient in param_dtype has none", "[mixed]") {
  HalfUsed net;
  DistributedDataParallel model(net, precise(narrow()));
  model(torch::ones({2})).sum().backward();
  CHECK(torch::equal(net->used.grad(), torch::ones({2})));
  CHECK(!net->unused.grad().defined());
}

struct OddImpl : torch::nn::Module {
  OddImpl() {
    weight = register_parameter("weight", torch::ones({2}));
    ignored = register_parameter("ignored", torch::ones({2}));
    count = register_parameter("count", torch::ones({2}, torch::kLong), false);
    scale = register_buffer("scale", torch::ones({2}));
    mine = register_buffer("mine", torch::ones({2}));
    steps = register_buffer("steps", torch::ones({2}, torch::kLong));
  }
  /// Returns the dtypes that operators see.
  std::vector<torch::Dtype> forward() {
    std::vector<torch::Dtype> dtypes;
    for (const auto& tensor : {weight, ignored, count, scale, mine, steps}) {
      dtypes.push_back((tensor * 1).scalar_type());
    }
    return dtypes;
  }
  Tensor weight, ignored, count, scale, mine, steps;
};
TORCH_MODULE(Odd);

TEST_CASE("what is ignored and what is no floating number stays", "[mixed]") {
  Odd odd;
  DistributedDataParallel model(
      odd,
      precise(narrow().buffer_dtype(torch::kHalf))
          .params_and_buffers_to_ignore({"ignored", "mine"}));
  CHECK(model() ==
        std::vector<torch::Dtype>{
            kNarrow, kFloat, torch::kLong, torch::kHalf, kFloat, torch::kLong});
  CHECK(odd->forward() ==
        std::vector<torch::Dtype>{
            kFloat, kFloat, torch::kLong, torch::kHalf, kFloat, torch::kLong});
  CHECK(odd->scale.scalar_type() == torch::kHalf);
  CHECK(odd->named_buffers()["scale"].is_same(odd->scale));
}

/// Applies `use` to its one parameter, which a second member holds, too.
struct UserImpl : torch::nn::Module {
  using Use = std::function<Tensor(const Tensor&)>;
  explicit UserImpl(Use use) : use(std::move(use)) {
    weight = register_parameter("weight", numbers({4, 4}, 1));
    kept = weight;
  }
  Tensor forward() { return use(kept); }
  Use use;
  Tensor weight;
  Tensor kept;
};
TORCH_MODULE(User);

/// Checks that `use` of a parameter has the same output and gradient under the
/// wrapper as `use` of the converted parameter.
void expect_as_converted(const UserImpl::Use& use) {
  User user(use);
  DistributedDataParallel model(user, precise(narrow()));
  const auto output = model();
  const auto leaf = user->weight.detach().requires_grad_();
  const auto expected = use(leaf.to(kNarrow));
  CHECK(output.scalar_type() == expected.scalar_type());
  CHECK(torch::equal(output, expected));
  output.to(kFloat).pow(2).sum().backward();
  expected.to(kFloat).pow(2).sum().backward();
  CHECK(user->weight.grad().scalar_type() == kFloat);
  CHECK(torch::equal(user->weight.grad(), leaf.grad()));
}

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      const torch::autograd::variable_list& gradients) {
    return {gradients[0] * 2};
  }
};

TEST_CASE("whatever takes a parameter is given its copy", "[mixed]") {
  const auto x = numbers({4, 4}, 2).to(kNarrow);
  SECTION("products, twice") {
    expect_as_converted([&](const Tensor& w) {
      return torch::linear(torch::tanh(x.matmul(w)), w);
    });
  }
  SECTION("views") {
    expect_as_converted([&](const Tensor& w) {
      return w.t().narrow(0, 1, 2).matmul(x) + w.view({2, 8}).sum();
    });
  }
  SECTION("lists") {
    expect_as_converted([&](const Tensor& w) {
      return torch::cat({x, w, w * 2}).sum(0) + torch::stack({w, x}).sum();
    });
  }
  SECTION("promotion") {
    expect_as_converted([&](const Tensor& w) { return w * x.to(kFloat); });
  }
  SECTION("a function of autograd") {
    expect_as_converted(
        [&](const Tensor& w) { return Doubled::apply(w).matmul(x); });
  }
  SECTION("a gradient inside the forward") {
    expect_as_converted([&](const Tensor& w) {
      const auto inner = w.pow(3).sum();
      return torch::autograd::grad({inner}, {w}, {}, true, true)[0].to(kNarrow);
    });
  }
}

TEST_CASE("a layer with lists of weights computes in param_dtype", "[mixed]") {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2));
  fill(*lstm);
  DistributedDataParallel model(lstm, precise(narrow()));
  const auto x = numbers({5, 2, 3}, 1);
  const auto output = std::get<0>(model(x));
  output.to(kFloat).sum().backward();
  const auto gradient = lstm->parameters()[0].grad();

  torch::nn::LSTM plain(torch::nn::LSTMOptions(3, 4).num_layers(2));
  fill(*plain);
  plain->to(kNarrow);
  const auto expected = std::get<0>(plain(x.to(kNarrow)));
  expected.to(kFloat).sum().backward();
  CHECK(torch::equal(output, expected));
  CHECK(torch::equal(gradient, plain->parameters()[0].grad().to(kFloat)));
}

TEST_CASE("an operator that writes to a parameter gets it", "[mixed]") {
  User user([](const Tensor& w) {
    const auto before = w * 1;
    {
      const torch::NoGradGuard no_grad;
      w.mul_(0.5);
    }
    return before - w * 2;
  });
  DistributedDataParallel model(user, precise(narrow()));
  const auto start = user->weight.detach().clone();
  CHECK(model().eq(0).all().item<bool>());
  CHECK(torch::equal(user->weight, start * 0.5));  // and was not rounded
}

TEST_CASE("outside of a forward parameters are as they were", "[mixed]") {
  bool throws = false;
  User user([&](const Tensor& w) {
    TORCH_CHECK(!throws, "no luck");
    return w * 1;
  });
  DistributedDataParallel model(user, precise(narrow()));
  const auto is_float = [&] {
    return (user->weight * 1).scalar_type() == kFloat &&
           user->weight.scalar_type() == kFloat &&
           user->forward().scalar_type() == kFloat;
  };
  CHECK(is_float());
  const auto output = model();
  CHECK(output.scalar_type() == kNarrow);
  CHECK(is_float());
  {
    const torch::NoGradGuard no_grad;
    CHECK(model().scalar_type() == kNarrow);
    CHECK(is_float());
  }
  throws = true;
  CHECK_THROWS_WITH(model(), Contains("no luck"));
  throws = false;
  CHECK(is_float());
  output.sum().backward();
  CHECK(is_float());
  CHECK(model->call(&UserImpl::forward).scalar_type() == kNarrow);
}

struct Batch {
  Tensor data;
  std::map<std::string, std::vector<Tensor>> more;
  int64_t number = 0;
};
auto tensor_fields(const Batch& batch) {
  return std::tie(batch.data, batch.more);
}

struct TakerImpl : torch::nn::Module {
  TakerImpl() { register_parameter("weight", torch::ones({1})); }
  std::vector<torch::Dtype> forward(const Batch& batch,
                                    Tensor& in_place,
                                    const std::optional<Tensor>& maybe,
                                    std::unique_ptr<Tensor> held,
                                    const char* text) {
    in_place = Tensor();
    return {batch.data.scalar_type(),
            batch.more.at("a")[0].scalar_type(),
            batch.more.at("b")[0].scalar_type(),
            maybe->scalar_type(),
            held->scalar_type(),
            text[batch.number] == 'y' ? torch::kBool : torch::kLong};
  }
};
TORCH_MODULE(Taker);

TEST_CASE("floating inputs are converted wherever they lie", "[mixed]") {
  const bool converts = GENERATE(true, false);
  Taker taker;
  DistributedDataParallel model(
      taker, precise(converts ? narrow() : MixedPrecision()));
  const Batch batch{
      torch::ones(2),
      {{"a", {torch::ones(2)}}, {"b", {torch::ones(2, torch::kLong)}}},
      1};
  auto in_place = torch::ones(2);
  const std::optional<Tensor> maybe = torch::ones(2, torch::kDouble);
  const auto dtypes = model(
      batch, in_place, maybe, std::make_unique<Tensor>(torch::ones(2)), "xy");
  const auto data = converts ? kNarrow : kFloat;
  CHECK(dtypes == std::vector<torch::Dtype>{data,
                                            data,
                                            torch::kLong,
                                            converts ? kNarrow : torch::kDouble,
                                            kFloat,
                                            torch::kBool});
  CHECK(batch.data.scalar_type() == kFloat);  // the caller's tensors stay
  CHECK(batch.more.at("a")[0].scalar_type() == kFloat);
  CHECK(in_place.defined() == converts);

  auto leaf = torch::ones({2, 3}).requires_grad_();
  torch::nn::Linear layer(3, 1);
  DistributedDataParallel linear(layer, precise(narrow()));
  linear(leaf).sum().backward();
  CHECK(leaf.grad().scalar_type() == kFloat);
}

struct CopiedFields {
  Tensor data;
};
auto tensor_fields(const CopiedFields& copies) {
  return std::tuple(copies.data);
}

struct CopiedFieldsTakerImpl : torch::nn::Module {
  CopiedFieldsTakerImpl() { register_parameter("weight", torch::ones({1})); }
  torch::Dtype forward(const CopiedFields& copies) {
    return copies.data.scalar_type();
  }
};
TORCH_MODULE(CopiedFieldsTaker);

TEST_CASE("an input whose tensor_fields returns copies", "[mixed]") {
  CopiedFieldsTaker taker;
  DistributedDataParallel model(taker, precise(narrow()));
  CHECK(model(CopiedFields{torch::ones(2, torch::kLong)}) == torch::kLong);
  CHECK_THROWS_WITH(model(CopiedFields{torch::ones(2)}),
                    Contains("Expected tensor_fields to return references"));
}

TEST_CASE("passes of all kinds with mixed precision", "[mixed]") {
  const bool finds_unused = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    // All values are exact in bfloat16, so the mean has a closed form.
    torch::nn::Linear used(torch::nn::LinearOptions(2, 1).bias(false));
    torch::nn::Linear maybe(torch::nn::LinearOptions(2, 1).bias(false));
    torch::nn::Sequential net(used, maybe);
    DistributedDataParallel model(
        net, precise(narrow(), group).find_unused_parameters(finds_unused));
    const double slope = group->getRank() + 1.0;
    const auto loss = [&](bool with_all) {
      const auto x = torch::full({1, 2}, slope);
      return model->call([&](torch::nn::SequentialImpl&) {
        const auto y = x.to(kNarrow);
        auto sum = used(y).sum();
        return with_all ? sum + maybe(y).sum() : sum;
      });
    };
    const auto expect = [](const Tensor& gradient, double value) {
      TORCH_CHECK(gradient.scalar_type() == kFloat &&
                      gradient.eq(value).all().item<bool>(),
                  "Expected ",
                  value,
                  ", but got ",
                  gradient);
    };
    const auto first = loss(true);
    const auto second = loss(true);
    first.backward();
    expect(used->weight.grad(), 1.5);
    second.backward();
    expect(used->weight.grad(), 3);

    net->zero_grad();
    {
      const NoSyncGuard no_sync(*model);
      loss(true).backward();
    }
    expect(maybe->weight.grad(), slope);
    loss(true).backward();
    expect(maybe->weight.grad(), 3);
    if (finds_unused) {
      net->zero_grad();
      loss(group->getRank() == 0).backward();
      expect(used->weight.grad(), 1.5);
      expect(maybe->weight.grad(), 0.5);
    }
  });
}

struct CheckpointedNetImpl : torch::nn::Module {
  explicit CheckpointedNetImpl(bool is_checkpointed)
      : is_checkpointed(is_checkpointed) {
    register_module("first", first);
    register_module("block", block);
    fill(*this);
  }
  Tensor forward(Tensor x) {
    x = first(x);
    const auto part = [this](const Tensor& y) {
      return torch::tanh(block(y)) * block->weight.sum();
    };
    // The parameter gets a copy here, which the checkpointed part does not use.
    const auto before = block->weight.sum();
    x = is_checkpointed ? checkpoint_activations(part, x) : part(x);
    return x * before;
  }
  torch::nn::Linear first{3, 4};
  torch::nn::Linear block{4, 4};
  bool is_checkpointed;
};
TORCH_MODULE(CheckpointedNet);

TEST_CASE("a checkpointed part is computed again in param_dtype", "[mixed]") {
  std::vector<std::vector<Tensor>> gradients;
  for (const bool is_checkpointed : {false, true}) {
    CheckpointedNet net(is_checkpointed);
    DistributedDataParallel model(net, precise(narrow()));
    const auto output = model(numbers({5, 3}, 1));
    CHECK(output.scalar_type() == kNarrow);
    output.to(kFloat).pow(2).sum().backward();
    gradients.emplace_back();
    for (const auto& parameter : net->parameters()) {
      gradients.back().push_back(parameter.grad());
    }
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    // With a checkpoint the two shares of a gradient arrive separately, and
    // their sum is rounded once more.
    CHECK(is_near(gradients[1][i], gradients[0][i], /*exactly=*/false));
    CHECK_FALSE(gradients[1][i].eq(0).all().item<bool>());
  }
}

TEST_CASE("a wrapper inside a wrapper has its own dtype", "[mixed]") {
  User inner([](const Tensor& w) { return w * 1; });
  DistributedDataParallel wrapped(
      inner, precise(MixedPrecision().param_dtype(torch::kHalf)));
  User outer([](const Tensor& w) { return w * 1; });
  DistributedDataParallel model(outer, precise(narrow()));
  std::vector<torch::Dtype> dtypes;
  model->call([&](UserImpl& user) {
    dtypes.push_back(user.forward().scalar_type());
    dtypes.push_back(wrapped().scalar_type());
    wrapped->call([&](UserImpl&) {
      dtypes.push_back((outer->weight * 1).scalar_type());
      return Tensor();
    });
    dtypes.push_back(inner->forward().scalar_type());
    return Tensor();
  });
  CHECK(dtypes ==
        std::vector<torch::Dtype>{kNarrow, torch::kHalf, kNarrow, kFloat});
}

TEST_CASE("a file holds the parameters as they are", "[mixed]") {
  torch::nn::Linear net(3, 4);
  fill(*net);
  DistributedDataParallel model(net, precise(narrow()));
  const auto output = model(numbers({5, 3}, 1));  // no backward pass yet
  torch::nn::Linear loaded(3, 4);
  SECTION("of LibTorch") {
    std::stringstream file;
    torch::save(model, file);
    torch::load(loaded, file);
  }
  SECTION("a checkpoint") {
    const test::TemporaryFolder folder;
    Checkpoint(model).save(folder / "last.pt");
    Checkpoint(loaded).load(folder / "last.pt");
  }
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    CHECK(is_near(
        loaded->parameters()[i], net->parameters()[i], /*exactly=*/true));
  }
}

TEST_CASE("gradients travel in reduce_dtype", "[mixed]") {
  struct Wire {
    MixedPrecision precision;
    int64_t bytes;
  };
  const auto [precision, bytes] =
      GENERATE(Wire{narrow(), 2},
               Wire{narrow().reduce_dtype(torch::kFloat), 4},
               Wire{MixedPrecision().reduce_dtype(torch::kHalf), 2},
               Wire{narrow().reduce_dtype(torch::kDouble), 8});
  run_ranks(2, [&, &precision = precision, &bytes = bytes](const Group& group) {
    const auto counted = c10::make_intrusive<CountingBackend>(group);
    torch::nn::Linear net(torch::nn::LinearOptions(1000, 1).bias(false));
    DistributedDataParallel model(net, precise(precision, counted));
    for (int step = 0; step < 2; ++step) {
      counted->take();
      model(torch::ones({1, 1000})).sum().backward();
      const auto sent = counted->take().all_reduce;
      TORCH_CHECK(sent >= 1000 * bytes && sent < 1000 * bytes + 200, sent);
    }
  });
}

TEST_CASE("dtypes that make no sense", "[mixed][errors]") {
  const auto error = [](const Options& options) {
    torch::nn::Linear net(2, 2);
    try {
      DistributedDataParallel model(net, options);
    } catch (const c10::Error& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string();
  };
  CHECK_THAT(error(precise(MixedPrecision().param_dtype(torch::kLong))),
             Contains("Expected param_dtype of mixed_precision to be") &&
                 Contains("but got Long"));
  CHECK_THAT(error(precise(MixedPrecision().reduce_dtype(torch::kBool))),
             Contains("Expected reduce_dtype of mixed_precision to be"));
  CHECK_THAT(error(precise(MixedPrecision().buffer_dtype(torch::kInt))),
             Contains("Expected buffer_dtype of mixed_precision to be"));
  const auto own = [] { return std::make_shared<NoExchange>(); };
  CHECK_THAT(error(precise(narrow().reduce_dtype(kFloat)).exchange(own())),
             Contains("without a reduce_dtype beside an exchange") &&
                 Contains("CastExchange"));
  const auto alone = c10::make_intrusive<test::FakeBackend>(1);
  CHECK(error(precise(narrow(), alone).exchange(own())).empty());
}

}  // namespace mixed_precision_test
}  // namespace ddp
