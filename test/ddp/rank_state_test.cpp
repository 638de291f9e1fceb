// Parameters and buffers of a wrapped module that each rank keeps for itself.
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace rank_state_test {

using Catch::Contains;
using test::FakeBackend;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;
using Names = std::vector<std::string>;

Tensor full(at::IntArrayRef sizes, double value) {
  return torch::full(sizes, value, torch::kDouble);
}

void expect(const Tensor& tensor, double value) {
  TORCH_CHECK(tensor.defined() && tensor.allclose(full({1}, value)),
              "Expected ",
              value,
              ", but got ",
              tensor);
}

/// A part with a size that can differ between ranks. Its gradients are x, and
/// its buffer sums its inputs.
struct PartImpl : torch::nn::Module {
  explicit PartImpl(int64_t size) {
    weight = register_parameter("weight", full({size}, 1));
    seen = register_buffer("seen", full({size}, 0));
  }
  Tensor forward(const Tensor& x) {
    seen.add_(x);
    return (weight * x).sum();
  }
  Tensor weight, seen;
};
TORCH_MODULE(Part);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t rank)
      : shared(register_module("shared", Part(3))),
        own(register_module("own", Part(1 + rank))) {
    const torch::NoGradGuard no_grad;
    for (auto& tensor : parameters()) {
      tensor.fill_(10 + rank);
    }
    for (auto& tensor : buffers()) {
      tensor.fill_(20 + rank);
    }
  }
  Tensor forward(const Tensor& x) { return shared(x) + own(x); }
  Part shared, own;
};
TORCH_MODULE(Net);

const Names kOwn{"own.weight", "own.seen"};

TEST_CASE("ignored tensors stay local to each rank", "[ddp][ignored]") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool finds_unused = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    const double rank = group->getRank();
    Net net(group->getRank());
    DistributedDataParallel model(net,
                                  Options()
                                      .process_group(group)
                                      .find_unused_parameters(finds_unused)
                                      .params_and_buffers_to_ignore(kOwn));
    expect(net->shared->weight, 10);
    expect(net->shared->seen, 20);
    expect(net->own->weight, 10 + rank);
    expect(net->own->seen, 20 + rank);
    const double mean = (size + 1) / 2.0;
    for (int step = 1; step <= 3; ++step) {
      model(full({1}, rank + 1)).backward();
      // Gradients add up. The sum before this pass was a mean already.
      expect(net->shared->weight.grad(), step * mean);
      expect(net->own->weight.grad(), step * (rank + 1));
      expect(net->shared->seen, 20 + step);
      expect(net->own->seen, 20 + rank + step * (rank + 1));
    }
  });
}

TEST_CASE("an ignored parameter may be frozen and thawed", "[ddp][ignored]") {
  run_ranks(2, [](const Group& group) {
    Net net(group->getRank());
    net->own->weight.requires_grad_(false);
    DistributedDataParallel model(
        net, Options().process_group(group).params_and_buffers_to_ignore(kOwn));
    model(full({1}, 1)).backward();
    TORCH_CHECK(!net->own->weight.grad().defined());
    net->own->weight.requires_grad_(group->getRank() == 1);
    model(full({1}, 1)).backward();
    TORCH_CHECK(net->own->weight.grad().defined() == (group->getRank() == 1));
    expect(net->shared->weight.grad(), 2);
  });
}

TEST_CASE("ignored tensors stay local while a rank has no inputs",
          "[ddp][ignored][join]") {
  run_ranks(3, [](const Group& group) {
    const double rank = group->getRank();
    Net net(group->getRank());
    DistributedDataParallel model(
        net, Options().process_group(group).params_and_buffers_to_ignore(kOwn));
    Join join({*model});
    for (int step = 0; step < group->getRank(); ++step) {
      model(full({1}, 1)).backward();
    }
    join.finish();
    expect(net->shared->seen, 20 + 2);
    expect(net->own->weight, 10 + rank);
    expect(net->own->seen, 20 + rank + rank);
  });
}

TEST_CASE("a tensor is ignored under all of its names", "[ddp][ignored]") {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      first = register_parameter("first", full({1}, 1));
      second = register_parameter("second", first);
      other = register_parameter("other", full({1}, 1));
    }
    Tensor forward(const Tensor& x) { return (first + other) * x + second; }
    Tensor first, second, other;
  };
  const auto [names, is_shared] = GENERATE(
      table<Names, bool>({{{"first"}, true}, {{"first", "second"}, false}}));
  run_ranks(2, [names = names, is_shared = is_shared](const Group& group) {
    const auto tied = std::make_shared<TiedImpl>();
    DistributedDataParallel model(
        tied,
        Options().process_group(group).params_and_buffers_to_ignore(names));
    model(full({1}, group->getRank() + 1)).backward();
    expect(tied->other.grad(), 1.5);
    expect(tied->first.grad(), 1 + (is_shared ? 1.5 : group->getRank() + 1));
  });
}

TEST_CASE("names that cannot be ignored are refused",
          "[ddp][ignored][errors]") {
  const int size = GENERATE(1, 2);
  const auto wrap = [&](const Names& names) {
    DistributedDataParallel model(
        Net(0),
        Options()
            .process_group(c10::make_intrusive<FakeBackend>(size))
            .params_and_buffers_to_ignore(names));
  };
  CHECK_THROWS_WITH(wrap({"own.seen", "own.wieght"}),
                    Contains("but got \"own.wieght\" (did you mean "
                             "own.weight?); take the names of its"));
  CHECK_THROWS_WITH(wrap({"shared.sean"}), Contains("mean shared.seen?)"));
  CHECK_THROWS_WITH(wrap({"nothing"}), Contains("but got \"nothing\"; take"));
  CHECK_THROWS_WITH(wrap({""}), Contains("but got \"\"; take"));
  CHECK_THROWS_WITH(wrap({"own.weight", "shared.weight"}),
                    Contains("requires a gradient and is not ignored"));
  CHECK_NOTHROW(wrap({"own.weight", "own.weight"}));
}

TEST_CASE("ranks that ignore different tensors are refused",
          "[ddp][ignored][errors]") {
  const auto errors = try_ranks(3, [](const Group& group) {
    DistributedDataParallel model(
        Net(0),
        Options().process_group(group).params_and_buffers_to_ignore(
            group->getRank() == 2 ? Names{"own.weight"} : Names{}));
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("on ranks 0-1: parameter own.weight of ") &&
                   Contains("; on rank 2: buffer shared.seen of "));
  }
}

TEST_CASE("an embedding with max_norm is refused on all ranks",
          "[ddp][ignored][errors]") {
  const int size = GENERATE(1, 2);
  const auto wrap = [](const Group& group, const Names& ignored) {
    torch::nn::Sequential net(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).max_norm(1)),
        torch::nn::Linear(2, 1));
    DistributedDataParallel model(
        net,
        Options().process_group(group).params_and_buffers_to_ignore(ignored));
    model(torch::tensor({1L})).sum().backward();
  };
  for (const auto& error :
       try_ranks(size, [&](const Group& group) { wrap(group, {}); })) {
    if (size == 1) {
      CHECK(error == "");
    } else {
      CHECK_THAT(error, Contains("0.weight with it; leave max_norm out"));
    }
  }
  run_ranks(size, [&](const Group& group) { wrap(group, {"0.weight"}); });
}

TEST_CASE("buffers of every dtype are rank 0's", "[ddp]") {
  const auto dtype = GENERATE(torch::kByte,
                              torch::kChar,
                              torch::kShort,
                              torch::kInt,
                              torch::kLong,
                              torch::kUInt16,
                              torch::kUInt32,
                              torch::kUInt64,
                              torch::kBool,
                              torch::kHalf,
                              torch::kBFloat16,
                              torch::kFloat,
                              torch::kDouble,
                              torch::kComplexHalf,
                              torch::kComplexFloat,
                              torch::kComplexDouble,
                              torch::kFloat8_e5m2,
                              torch::kFloat8_e4m3fn,
                              torch::kFloat8_e5m2fnuz,
                              torch::kFloat8_e4m3fnuz,
                              torch::kFloat8_e8m0fnu);
  INFO(dtype);
  run_ranks(2, [&](const Group& group) {
    const int rank = group->getRank();
    torch::nn::Linear net(2, 1);
    const auto table =
        net->register_buffer("table", torch::full({3}, 2 - rank).to(dtype));
    const auto number =
        net->register_buffer("number", torch::full({}, 2 - rank).to(dtype));
    DistributedDataParallel model(net, Options().process_group(group));
    const auto expect = [&](double value) {
      for (const auto& buffer : {table, number}) {
        TORCH_CHECK(buffer.scalar_type() == dtype);
        const auto wanted = torch::full({buffer.numel()}, value).to(dtype);
        TORCH_CHECK(buffer.view({-1})
                        .view(torch::kByte)
                        .equal(wanted.view(torch::kByte)));
      }
    };
    expect(2);
    table.copy_(torch::full({3}, 4 * rank + 1).to(dtype));
    number.copy_(torch::full({}, 4 * rank + 1).to(dtype));
    model(torch::ones({1, 2})).sum().backward();
    expect(1);
  });
}

TEST_CASE("without init_sync each rank keeps its own values", "[ddp]") {
  const int size = GENERATE(1, 2, 3);
  run_ranks(size, [&](const Group& group) {
    torch::nn::Linear linear(2, 1);
    linear->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(group->getRank());
    DistributedDataParallel model(
        linear, Options().process_group(group).init_sync(false));
    expect(linear->weight, group->getRank());
    const torch::AutoGradMode grad_mode(true);
    model(full({1, 2}, group->getRank() + 1)).backward();
    expect(linear->weight.grad(), (size + 1) / 2.0);
  });
}

TEST_CASE("without init_sync modules are compared, but not copied", "[ddp]") {
  const bool synchronises = GENERATE(false, true);
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  DistributedDataParallel model(
      Part(2), Options().process_group(backend).init_sync(synchronises));
  const auto calls = backend->take_calls();
  CHECK(calls.size() == (synchronises ? 3 : 1));
  CHECK(calls.front().name == "allgather");
  CHECK(calls.back().name == (synchronises ? "broadcast" : "allgather"));

  for (const auto& error : try_ranks(2, [&](const Group& group) {
         DistributedDataParallel other(
             Part(2 + group->getRank()),
             Options().process_group(group).init_sync(synchronises));
       })) {
    CHECK_THAT(error,
               Contains("on rank 0: parameter weight of Double [2], ") &&
                   Contains("; on rank 1: parameter weight of Double [3], "));
  }
}

}  // namespace rank_state_test
}  // namespace ddp
