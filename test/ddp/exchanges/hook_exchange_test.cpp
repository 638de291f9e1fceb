#include "ddp/exchanges/hook_exchange.h"

#include <ATen/ops/embedding.h>
#include <torch/types.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace hook_exchange_test {

using Catch::Contains;
using test::all_equal;
using test::backward;
using test::FakeBackend;
using test::gauss;
using test::Group;
using test::leaf;
using test::run_ranks;
using test::try_ranks;
using Options = DistributedDataParallelOptions;
using Future = HookExchange::Future;
using Work = HookExchange::Work;
using Result = HookExchange::Result;

Options hooked(HookExchange::Hook hook) {
  return Options()
      .exchange(std::make_shared<HookExchange>(std::move(hook)))
      .first_bucket_cap_mb(1e-6)
      .bucket_cap_mb(1e-6);
}

Work sum(const Group& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return group->allreduce(tensors);
}

Future future_of(c10::IValue value) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
  future->markCompleted(std::move(value));
  return future;
}

TEST_CASE("a hook's work, future or tensor is the gradient",
          "[exchange][hook]") {
  const int size = GENERATE(1, 2, 3, 4);
  const int kind = GENERATE(0, 1, 2, 3);
  run_ranks(size, [&](const Group& group) {
    auto calls = std::make_shared<int>(0);
    const auto hook = [=](const GradientBucket& bucket) -> Result {
      ++*calls;
      switch (kind) {
        case 0:
          return sum(group, bucket.payload);
        case 1:
          return sum(group, bucket.payload)->getFuture();
        case 2:  // a tensor in other memory
          return sum(group, bucket.payload.clone())
              ->getFuture()
              ->then(
                  [](c10::ivalue::Future& future) -> c10::IValue {
                    return future.value().toTensorVector()[0];
                  },
                  c10::TensorType::get());
        default: {
          const auto result = bucket.payload.clone();
          sum(group, result)->wait();
          return result;
        }
      }
    };
    auto a = leaf({7});
    auto b = leaf({2, 5});
    Reducer reducer({{"a", a}, {"b", b}}, group, hooked(hook));
    for (int step = 1; step <= 3; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      backward(reducer, step * (group->getRank() + 1.0) * (a.sum() + b.sum()));
      // As with PyTorch's hooks, the exchange does not divide.
      TORCH_CHECK(all_equal(a.grad(), step * gauss(size)), a.grad());
      TORCH_CHECK(all_equal(b.grad(), step * gauss(size)), b.grad());
      TORCH_CHECK(*calls == 2 * step, *calls);
    }
  });
}

TEST_CASE("the examples of the hook's header", "[exchange][hook]") {
  run_ranks(2, [](const Group& group) {
    auto buckets = std::make_shared<int64_t>(0);
    const auto counted = [=](const ddp::GradientBucket& bucket) {
      ++*buckets;
      bucket.payload.div_(group->getSize());
      std::vector<at::Tensor> tensors{bucket.payload};
      return group->allreduce(tensors);
    };
    const auto clamped = [=](const ddp::GradientBucket& bucket) {
      std::vector<at::Tensor> tensors{bucket.payload};
      auto sum = group->allreduce(tensors)->getFuture();
      return sum->then(
          [size =
               group->getSize()](c10::ivalue::Future& future) -> c10::IValue {
            auto mean = future.value().toTensorVector()[0];
            return mean.div_(size).clamp_(-1, 1);
          },
          c10::TensorType::get());
    };
    auto a = leaf({3});
    Reducer first({{"a", a}}, group, hooked(counted));
    auto b = leaf({3});
    Reducer second({{"b", b}}, group, hooked(clamped));
    for (int step = 1; step <= 2; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      backward(first, (group->getRank() + 1.0) * a.sum());
      backward(second, (group->getRank() + 1.0) * b.sum());
      TORCH_CHECK(all_equal(a.grad(), 1.5), a.grad());
      TORCH_CHECK(all_equal(b.grad(), 1), b.grad());
      TORCH_CHECK(*buckets == step, *buckets);
    }
  });
}

TEST_CASE("a hook gets sparse gradients, too", "[exchange][hook][sparse]") {
  run_ranks(2, [](const Group& group) {
    auto table = torch::zeros({5, 2}).requires_grad_();
    Reducer reducer({{"table", table, true}},
                    group,
                    hooked([=](const GradientBucket& bucket) -> Result {
                      TORCH_CHECK(bucket.payload.is_sparse());
                      return sum(group, bucket.payload);
                    }));
    for (int step = 0; step < 2; ++step) {
      table.mutable_grad().reset();
      const auto rows = torch::tensor({int64_t{group->getRank()}, int64_t{3}});
      backward(reducer, torch::embedding(table, rows, -1, false, true).sum());
      auto expected = torch::zeros({5, 2});
      expected.slice(0, 0, 2) += 1;
      expected[3] += 2;
      TORCH_CHECK(table.grad().to_dense().equal(expected), table.grad());
    }
  });
}

/// Returns the error of a pass with this hook, over a backend without peers.
std::string error_of(HookExchange::Hook hook) {
  auto weight = leaf({2, 3});
  auto bias = leaf({4});
  Reducer reducer(
      {{"weight", weight}, {"bias", bias}},
      c10::make_intrusive<FakeBackend>(2),
      hooked([hook = std::move(hook)](const GradientBucket& bucket) {
        return bucket.is_last() ? hook(bucket) : Result(bucket.payload);
      }));
  try {
    backward(reducer, weight.sum() + bias.sum());
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST_CASE("a hook's wrong result is named with its bucket",
          "[exchange][hook][errors]") {
  const std::string bucket = "of the hook for gradient bucket 2 of 2";
  const auto expect = [&](const Result& result, const std::string& text) {
    const auto error = error_of([=](const GradientBucket&) { return result; });
    CHECK_THAT(error, Contains(bucket) && Contains(text));
  };
  expect(Work(), "Expected a work");
  expect(Work(), "but got null");
  expect(Future(), "Expected a future");
  expect(Future(), "but got null");
  expect(at::Tensor(), "but got an undefined one");
  const auto wrong = torch::ones({3});
  expect(wrong, "like its payload, [");
  expect(wrong, "but got [3] of Float on cpu");
  expect(future_of(wrong), "but got [3] of Float on cpu");
  expect(future_of(std::vector<at::Tensor>{wrong, wrong}),
         "to hold a tensor or a list of one, but got 2 tensors");
  expect(future_of(7), "to hold a tensor or a list of one, but got Int");
  const auto failed =
      c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  failed->setError(std::make_exception_ptr(std::runtime_error("no luck")));
  expect(failed, "to succeed, but got: no luck");
  const auto converted = error_of([](const GradientBucket& given) -> Result {
    return given.payload.to(torch::kDouble);
  });
  CHECK_THAT(converted,
             Contains(bucket) && Contains("] of Float on cpu, but got [") &&
                 Contains("of Double on cpu"));
  CHECK_THROWS_WITH(HookExchange(nullptr),
                    Contains("Expected a function as hook"));
}

TEST_CASE("a hook's wrong result on one rank ends all",
          "[exchange][hook][errors]") {
  const bool throws = GENERATE(false, true);
  const auto errors = try_ranks(3, [&](const Group& group) {
    const bool is_bad = group->getRank() == 1;
    auto a = leaf({3});
    auto b = leaf({4});
    Reducer reducer(
        {{"a", a}, {"b", b}}, group, hooked([&](const GradientBucket& bucket) {
          TORCH_CHECK(!is_bad || !throws, "no luck in the hook");
          const auto work = sum(group, bucket.payload);
          return is_bad ? Result(torch::ones({1})) : Result(work);
        }));
    for (int step = 0; step < 3; ++step) {
      backward(reducer, a.sum() + b.sum());
    }
  });
  CHECK_THAT(errors[1],
             Contains(throws ? "no luck in the hook" : "but got [1] of Float"));
  for (const int rank : {0, 2}) {
    CHECK_THAT(errors[rank],
               Contains("for gradient bucket ") || Contains("has left"));
  }
}

TEST_CASE("an exchange serves one model at a time", "[exchange][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  const auto options =
      hooked([](const GradientBucket& bucket) { return bucket.payload; });
  auto a = leaf({3});
  {
    const Reducer first({{"a", a}}, group, options);
    CHECK_THROWS_WITH(Reducer({{"a", a}}, group, options),
                      Contains("Expected an exchange of its own"));
  }
  const Reducer after({{"a", a}}, group, options);
}

TEST_CASE("an exchange serves one other exchange at a time",
          "[exchange][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  const auto inner = std::make_shared<AllReduce>(group);
  auto a = leaf({3});
  {
    const CastExchange outer(inner, torch::kHalf);
    CHECK_THROWS_WITH(CastExchange(inner, torch::kHalf),
                      Contains("Expected an exchange of its own"));
    CHECK_THROWS_WITH(Reducer({{"a", a}}, group, Options().exchange(inner)),
                      Contains("Expected an exchange of its own"));
  }
  const Reducer after({{"a", a}}, group, Options().exchange(inner));
}

}  // namespace hook_exchange_test
}  // namespace ddp
