#include "ddp/reducer.h"

#include <functional>
#include <tuple>

#include <torch/autograd.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/reduce/bucket_plan.h"
#include "ddp/reduce/detail/pass_mark.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace reducer_test {

using test::FakeBackend;
using test::gauss;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using Options = DistributedDataParallelOptions;

torch::Tensor leaf(double value, at::IntArrayRef sizes = {3}) {
  return torch::full(sizes, value).requires_grad_();
}

TEST_CASE("the gradient is the mean over ranks", "[reducer]") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool as_view = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    auto a = leaf(1);
    auto b = leaf(1, {2, 5});
    Reducer reducer({{"a", a}, {"b", b}},
                    group,
                    Options().gradient_as_bucket_view(as_view));
    for (int step = 1; step <= 3; ++step) {
      a.mutable_grad() = torch::Tensor();
      b.mutable_grad() = torch::Tensor();
      // d/da = step * (rank + 1), so the mean over p ranks is step * (p + 1) /
      // 2.
      const double slope = step * (group->getRank() + 1.0);
      auto loss = slope * a.sum() + 2 * slope * b.sum();
      loss.backward();
      const double mean = step * gauss(size) / size;
      TORCH_CHECK(a.grad().allclose(torch::full({3}, mean)), a.grad());
      TORCH_CHECK(b.grad().allclose(torch::full({2, 5}, 2 * mean)), b.grad());
    }
  });
}

TEST_CASE("a pass under a guard stays local", "[reducer]") {
  run_ranks(2, [](const Group& group) {
    auto a = leaf(1);
    Reducer reducer({{"a", a}}, group);
    const double slope = group->getRank() + 1.0;
    const auto loss = slope * a.sum();
    {
      const NoSyncGuard no_sync(reducer);
      const NoSyncGuard nested(reducer);
      loss.backward();
    }
    TORCH_CHECK(a.grad().allclose(torch::full({3}, slope)), a.grad());
    (slope * a.sum()).backward();  // averages the sum: 2 * slope
    TORCH_CHECK(a.grad().allclose(torch::full({3}, 3.0)), a.grad());
  });
}

TEST_CASE("two forwards, then their two backwards", "[reducer]") {
  run_ranks(2, [](const Group& group) {
    auto a = leaf(1);
    Reducer reducer({{"a", a}}, group);
    const double slope = group->getRank() + 1.0;
    std::vector<torch::Tensor> losses;
    for (int i = 0; i < 2; ++i) {
      losses.push_back(slope * a.sum());
    }
    losses[0].backward();
    TORCH_CHECK(a.grad().allclose(torch::full({3}, 1.5)), a.grad());
    losses[1].backward();  // mean of (1.5 + slope)
    TORCH_CHECK(a.grad().allclose(torch::full({3}, 3.0)), a.grad());
  });
}

/// Runs a backward pass inside its backward function, as reentrant activation
/// checkpointing does.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx,
                               const torch::Tensor& x,
                               std::shared_ptr<torch::Tensor> weight) {
    // Not an input, so only the inner pass computes the weight's gradient.
    ctx->save_for_backward({x});
    ctx->saved_data["weight"] = *weight;
    return x * weight->detach();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    torch::AutoGradMode grad_mode(true);
    auto x = saved[0].detach().requires_grad_();
    (x * ctx->saved_data["weight"].toTensor()).backward(grads[0]);
    return {x.grad(), torch::Tensor()};
  }
};

torch::Tensor checkpointed(const torch::Tensor& x,
                           const torch::Tensor& weight) {
  return Checkpointed::apply(x, std::make_shared<torch::Tensor>(weight));
}

TEST_CASE("a nested backward pass does not end the outer one", "[reducer]") {
  run_ranks(2, [](const Group& group) {
    auto first = leaf(2);
    auto inner = leaf(3);
    Reducer reducer({{"first", first}, {"inner", inner}}, group);
    const double slope = group->getRank() + 1.0;
    auto loss = (slope * checkpointed(first * 1.0, inner)).sum();
    loss.backward();
    TORCH_CHECK(first.grad().allclose(torch::full({3}, 1.5 * 3)), first.grad());
    TORCH_CHECK(inner.grad().allclose(torch::full({3}, 1.5 * 2)), inner.grad());
  });
}

TEST_CASE("a pass that begins in a nested one ends with the outer one",
          "[reducer]") {
  enum class Nested { before_the_output, twice, in_a_nested_one, in_a_hook };
  const auto nested = GENERATE(Nested::before_the_output,
                               Nested::twice,
                               Nested::in_a_nested_one,
                               Nested::in_a_hook);
  const bool finds_unused = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    auto body = leaf(2);
    auto head = leaf(3);
    auto other = leaf(4);
    Reducer reducer({{"body", body}, {"head", head}, {"other", other}},
                    group,
                    Options().find_unused_parameters(finds_unused));
    const double slope = group->getRank() + 1.0;
    for (int step = 0; step < 3; ++step) {
      for (auto* parameter : {&body, &head, &other}) {
        parameter->mutable_grad() = torch::Tensor();
      }
      const auto output = body * 1.0;
      // The backward pass visits operations after the output before the output.
      torch::Tensor loss = output * slope;
      if (nested == Nested::in_a_hook) {
        loss = loss * 3;
        loss.register_hook([&](const torch::Tensor&) {
          const torch::AutoGradMode grad_mode(true);
          (slope * (2 * head + 2 * other)).sum().backward();
        });
      } else if (nested == Nested::in_a_nested_one) {
        loss = checkpointed(checkpointed(loss, head), other);
      } else {
        loss = checkpointed(loss, head);
        loss =
            nested == Nested::twice ? checkpointed(loss, other) : loss * other;
      }
      loss.sum().backward();
      const auto is = [](const torch::Tensor& tensor, double value) {
        TORCH_CHECK(tensor.grad().allclose(torch::full({3}, value)),
                    tensor.grad());
      };
      const bool in_a_hook = nested == Nested::in_a_hook;
      is(body, 1.5 * (in_a_hook ? 3 : 3 * 4));
      is(head, 1.5 * (in_a_hook ? 2 : 2 * 4));
      is(other, 1.5 * (in_a_hook ? 2 : 2 * 3));
    }
  });
}

TEST_CASE("find_unused_parameters", "[reducer]") {
  const bool as_view = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    auto everywhere = leaf(1);
    auto on_rank_1 = leaf(1);
    auto nowhere = leaf(1);
    Reducer reducer(
        {{"everywhere", everywhere},
         {"on_rank_1", on_rank_1},
         {"nowhere", nowhere}},
        group,
        Options().find_unused_parameters(true).gradient_as_bucket_view(
            as_view));
    const double slope = group->getRank() + 1.0;
    auto loss = slope * everywhere.sum();
    if (group->getRank() == 1) {
      loss = loss + slope * on_rank_1.sum();
    }
    loss.backward();
    TORCH_CHECK(everywhere.grad().allclose(torch::full({3}, 1.5)));
    TORCH_CHECK(on_rank_1.grad().allclose(torch::full({3}, 1.0)));
    TORCH_CHECK(!nowhere.grad().defined());
  });
}

TEST_CASE("a gradient that the program holds is not overwritten", "[reducer]") {
  enum class Hold { nothing, handle, alias };
  const auto hold = GENERATE(Hold::nothing, Hold::handle, Hold::alias);
  run_ranks(2, [&](const Group& group) {
    auto a = leaf(1);
    auto b = leaf(1, {2, 2});
    Reducer reducer({{"a", a}, {"b", b}}, group);
    torch::Tensor held;
    const void* memory = nullptr;
    for (int step = 1; step <= 3; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      auto loss = step * (group->getRank() + 1.0) * (a.sum() + b.sum());
      loss.backward();
      if (held.defined()) {
        TORCH_CHECK(held.allclose(torch::full({3}, 1.5)), held);
      }
      TORCH_CHECK(a.grad().allclose(torch::full({3}, step * 1.5)), a.grad());
      TORCH_CHECK(b.grad().allclose(torch::full({2, 2}, step * 1.5)));
      if (step == 1 && hold != Hold::nothing) {
        held = hold == Hold::handle ? a.grad() : a.grad().detach();
      }
      // If the gradient is held, it gets new memory once, in the second step.
      const bool moved = step == 2 && hold != Hold::nothing;
      TORCH_CHECK(step == 1 || moved != (memory == a.grad().const_data_ptr()));
      memory = a.grad().const_data_ptr();
    }
  });
}

TEST_CASE("a hold of the memory keeps each gradient's address", "[reducer]") {
  run_ranks(2, [&](const Group& group) {
    auto a = leaf(1);
    Reducer reducer({{"a", a}}, group);
    std::vector<torch::Tensor> seen;
    std::shared_ptr<const void> hold;
    for (int step = 1; step <= 4; ++step) {
      a.mutable_grad().reset();
      (step * (group->getRank() + 1.0) * a.sum()).backward();
      TORCH_CHECK(a.grad().allclose(torch::full({3}, step * 1.5)), a.grad());
      seen.push_back(a.grad());
      if (step == 1) {
        hold = reducer.hold_memory();
      } else if (step == 3) {
        hold.reset();
      }
    }
    const auto memory = seen[0].const_data_ptr();
    TORCH_CHECK(seen[1].const_data_ptr() == memory);
    TORCH_CHECK(seen[2].const_data_ptr() == memory);
    TORCH_CHECK(seen[3].const_data_ptr() != memory, "held without a hold");
  });
}

TEST_CASE("memory is held after a first pass", "[reducer][errors]") {
  auto a = leaf(1);
  Reducer reducer({{"a", a}}, c10::make_intrusive<FakeBackend>(2));
  CHECK_THROWS_WITH(std::ignore = reducer.hold_memory(),
                    Catch::Contains("after a first backward pass"));
}

TEST_CASE("only the bucket of a held gradient gets new memory", "[reducer]") {
  const bool keeps_grads = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    std::vector<torch::Tensor> leaves;
    std::vector<NamedParameter> named;
    for (const char* name : {"a", "b", "c"}) {
      leaves.push_back(leaf(1));
      named.push_back({name, leaves.back()});
    }
    Reducer reducer(
        named, group, Options().first_bucket_cap_mb(1e-6).bucket_cap_mb(1e-6));
    torch::Tensor held;
    std::vector<const void*> memory(3);
    double expected = 0;
    for (int step = 1; step <= 4; ++step) {
      if (step == 3) {  // the plan is final after step 1
        held = leaves[1].grad();
        leaves[1].mutable_grad().reset();
      }
      auto loss = (group->getRank() + 1.0) *
                  (leaves[0].sum() + leaves[1].sum() + leaves[2].sum());
      loss.backward();
      expected = keeps_grads ? expected + 1.5 : 1.5;
      for (size_t i = 0; i < 3; ++i) {
        auto& grad = leaves[i].mutable_grad();
        const double own =
            i == 1 && keeps_grads && step > 2 ? 1.5 * (step - 2) : expected;
        TORCH_CHECK(grad.allclose(torch::full({3}, own)), step, i, grad);
        const bool moved = memory[i] != grad.const_data_ptr();
        TORCH_CHECK(step < 3 || moved == (step == 3 && i == 1), step, i);
        memory[i] = grad.const_data_ptr();
        if (!keeps_grads) {
          grad.zero_();
        }
      }
      if (held.defined()) {
        TORCH_CHECK(held.allclose(torch::full({3}, keeps_grads ? 3.0 : 0.0)));
      }
    }
  });
}

TEST_CASE("an unused gradient stays as it is", "[reducer]") {
  run_ranks(3, [&](const Group& group) {
    auto used = leaf(1);
    auto once = leaf(1);
    Reducer reducer({{"used", used}, {"once", once}},
                    group,
                    Options().find_unused_parameters(true));
    const auto run = [&](const torch::Tensor& loss) { loss.backward(); };
    const double slope = 0.1 * (group->getRank() + 1);
    run(slope * (used.sum() + once.sum()));
    const auto before = once.grad().clone();
    run(slope * used.sum());  // sums of thirds are inexact
    TORCH_CHECK(once.grad().equal(before), once.grad());
    TORCH_CHECK(used.grad().allclose(torch::full({3}, 0.4)), used.grad());
  });
}

TEST_CASE("a parameter used in a local pass is used", "[reducer]") {
  run_ranks(2, [&](const Group& group) {
    auto now = leaf(1);
    auto before = leaf(1);
    Reducer reducer({{"now", now}, {"before", before}},
                    group,
                    Options().find_unused_parameters(true));
    const double slope = group->getRank() + 1.0;
    (slope * before.sum()).backward();
    auto loss = slope * now.sum();
    loss.backward();
    TORCH_CHECK(before.grad().allclose(torch::full({3}, 1.5)), before.grad());
  });
}

TEST_CASE("gradient_as_bucket_view works with LibTorch's optimizers",
          "[reducer]") {
  const bool to_none = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    auto a = leaf(1);
    auto b = leaf(1, {2, 2});
    Reducer reducer(
        {{"a", a}, {"b", b}}, group, Options().gradient_as_bucket_view(true));
    torch::optim::SGD optimizer({a, b}, 0.5);
    const void* memory = nullptr;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad(to_none);
      auto loss = (group->getRank() + 1.0) * (a.sum() + b.sum());
      loss.backward();
      torch::nn::utils::clip_grad_norm_({a, b}, 1e9);
      optimizer.step();
      TORCH_CHECK(a.grad().allclose(torch::full({3}, 1.5)), a.grad());
      TORCH_CHECK(step < 1 || memory == a.grad().const_data_ptr());
      memory = a.grad().const_data_ptr();
    }
    TORCH_CHECK(a.allclose(torch::full({3}, 1 - 4 * 0.5 * 1.5)), a);
    const auto gap = static_cast<const char*>(b.grad().const_data_ptr()) -
                     static_cast<const char*>(a.grad().const_data_ptr());
    TORCH_CHECK(std::abs(gap) <= 16, "not in one bucket");
  });
}

TEST_CASE("several dtypes and layouts", "[reducer]") {
  const bool as_view = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    auto images = torch::ones({2, 3, 4, 4})
                      .contiguous(torch::MemoryFormat::ChannelsLast)
                      .requires_grad_();
    auto doubles = torch::ones({5}, torch::kDouble).requires_grad_();
    auto halves = torch::ones({5}, torch::kBFloat16).requires_grad_();
    auto complexes = torch::ones({5}, torch::kComplexFloat).requires_grad_();
    auto scalar = torch::ones({}).requires_grad_();
    auto empty = torch::ones({0}).requires_grad_();
    Reducer reducer({{"images", images},
                     {"doubles", doubles},
                     {"halves", halves},
                     {"complexes", complexes},
                     {"scalar", scalar},
                     {"empty", empty}},
                    group,
                    Options().gradient_as_bucket_view(as_view));
    const double slope = group->getRank() + 1.0;
    const auto ramp = torch::arange(96).view({2, 3, 4, 4}).to(torch::kFloat);
    for (int step = 0; step < 3; ++step) {
      for (auto& p : {images, doubles, halves, complexes, scalar, empty}) {
        p.mutable_grad() = torch::Tensor();
      }
      auto loss =
          slope * ((images * ramp).sum() + doubles.sum() + halves.sum() +
                   torch::real(complexes).sum() + scalar + empty.sum());
      loss.backward();
      TORCH_CHECK(images.grad().allclose(1.5 * ramp));
      TORCH_CHECK(images.grad().strides() == images.strides());
      TORCH_CHECK(doubles.grad().eq(1.5).all().item<bool>());
      TORCH_CHECK(halves.grad().eq(1.5).all().item<bool>());
      TORCH_CHECK(complexes.grad().eq(1.5).all().item<bool>());
      TORCH_CHECK(scalar.grad().item<double>() == 1.5);
    }
  });
}

TEST_CASE("buckets are launched in order and rebuilt once by arrival",
          "[reducer]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  std::vector<torch::Tensor> p;
  std::vector<NamedParameter> named;
  for (int i = 0; i < 4; ++i) {
    p.push_back(leaf(1, {10 + i}));
    named.push_back({c10::str("p", i), p.back()});
  }
  // Every gradient fills a bucket.
  Reducer reducer(
      named, backend, Options().first_bucket_cap_mb(1e-6).bucket_cap_mb(1e-6));
  CHECK(reducer.plan() == detail::BucketPlan{{3}, {2}, {1}, {0}});
  const auto step = [&] {
    // The backward pass visits p[2] first, then p[0], p[3] and p[1].
    auto x = p[1].sum();
    x = x * p[3].sum();
    x = x * p[0].sum();
    x = x * p[2].sum();
    x.backward();
    std::string calls;
    for (const auto& call : backend->take_calls()) {
      calls += c10::str(call.name, " ", call.numel, "; ");
    }
    return calls;
  };
  // The last bucket also has the status's elements.
  const auto rebuilt =
      c10::str("allreduce 12; allreduce 10; allreduce 13; allreduce ",
               11 + detail::kMarkNumel,
               "; ");
  CHECK(step() == "broadcast 4; " + rebuilt);
  CHECK(reducer.plan() == detail::BucketPlan{{2}, {0}, {3}, {1}});
  CHECK(step() == rebuilt);
  CHECK(step() == rebuilt);
}

TEST_CASE("a bucket is launched while the backward pass still runs",
          "[reducer]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  auto early = leaf(1);
  auto late = leaf(1, {4});
  Reducer reducer({{"late", late}, {"early", early}},
                  backend,
                  Options().first_bucket_cap_mb(1e-6));
  size_t launched_before_late = 0;
  late.register_hook([&](const torch::Tensor&) {
    launched_before_late = backend->take_calls().size();
  });
  const auto step = [&] {
    backend->take_calls();
    auto loss = late.sum();
    loss = loss * early.sum();  // its gradient comes first
    loss.backward();
    return launched_before_late;
  };
  CHECK(step() == 0);  // the first pass records the order
  CHECK(step() == 1);
}

TEST_CASE("a gradient of gradients pass still averages", "[reducer]") {
  run_ranks(2, [](const Group& group) {
    auto a = leaf(2);
    Reducer reducer({{"a", a}}, group);
    auto loss = (group->getRank() + 1.0) * (a * a).sum();
    loss.backward({}, /*keep_graph=*/true, /*create_graph=*/true);
    TORCH_CHECK(a.grad().detach().allclose(torch::full({3}, 6.0)));
  });
}

TEST_CASE("an exception that leaves a pass is noticed", "[reducer][errors]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  auto a = leaf(1);
  auto b = leaf(1);
  Reducer reducer({{"a", a}, {"b", b}}, backend);
  auto middle = b * 1.0;
  middle.register_hook([](const torch::Tensor&) -> torch::Tensor {
    throw std::runtime_error("out of luck");
  });
  auto loss = middle.sum() + a.sum();
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("out of luck"));
  const auto says = Catch::Contains("an exception has left its backward pass");
  SECTION("by the next forward") {
    CHECK_THROWS_WITH(reducer.before_forward(), says);
  }
  SECTION("by the next gradient") {
    CHECK_THROWS_WITH(a.sum().backward(), says);
  }
  CHECK_THROWS_WITH(reducer.before_forward(), says);
  CHECK_THROWS_WITH(a.sum().backward(), says);
  CHECK(backend->take_calls().empty());
}

TEST_CASE("a reducer is destroyed in an unfinished pass without a collective",
          "[reducer][errors]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  auto a = leaf(1);
  auto b = leaf(1);
  {
    const Reducer reducer({{"a", a}, {"b", b}}, backend);
    auto middle = b * 1.0;
    middle.register_hook([](const torch::Tensor&) -> torch::Tensor {
      throw std::runtime_error("out of luck");
    });
    auto loss = middle.sum() + a.sum();
    CHECK_THROWS_WITH(loss.backward(), Catch::Contains("out of luck"));
  }
  CHECK(backend->take_calls().empty());
}

TEST_CASE("a pass that fails before its first gradient may be tried again",
          "[reducer][errors]") {
  run_ranks(3, [&](const Group& group) {
    auto a = leaf(1);
    Reducer reducer({{"a", a}}, group);
    bool fails = group->getRank() == 1;
    a.register_hook([&](const torch::Tensor&) {
      if (std::exchange(fails, false)) {
        throw std::runtime_error("out of luck");
      }
    });
    for (int step = 1; step <= 3; ++step) {
      a.mutable_grad().reset();
      const auto pass = [&] { (step * group->getRank() * a.sum()).backward(); };
      try {
        pass();
      } catch (const std::exception&) {
        TORCH_CHECK(group->getRank() == 1 && step == 1);
        pass();
      }
      TORCH_CHECK(a.grad().eq(step).all().item<bool>(), a.grad());
    }
  });
}

TEST_CASE("a peer that leaves ends the others' wait", "[reducer][errors]") {
  const bool at_once = GENERATE(true, false);  // in the first pass
  const auto errors = try_ranks(3, [&](const Group& group) {
    auto a = leaf(1);
    Reducer reducer({{"a", a}}, group);
    for (const bool is_first : {true, false}) {
      TORCH_CHECK(group->getRank() != 1 || is_first != at_once,
                  "rank 1 gives up");
      auto loss = a.sum();
      loss.backward();
    }
  });
  CHECK_THAT(errors[1], Catch::Contains("rank 1 gives up"));
  for (const int rank : {0, 2}) {
    CHECK_THAT(errors[rank],
               Catch::Contains("rank " + std::to_string(rank)) &&
                   Catch::Contains("another rank has left"));
    // In the first pass the broadcast before the all-reduce may fail instead.
    CHECK_THAT(errors[rank],
               Catch::Contains(at_once ? " failed"
                                       : "all-reduce of gradient bucket 1 of "
                                         "1 failed"));
  }
}

TEST_CASE("a second gradient in one pass names the parameter",
          "[reducer][errors]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  auto a = leaf(1);
  Reducer reducer({{"shared", a}}, backend);
  auto x = torch::ones({3}).requires_grad_();
  auto loss = checkpointed(checkpointed(x * 1.0, a), a).sum();
  CHECK_THROWS_WITH(loss.backward(),
                    Catch::Contains("one gradient for parameter shared"));
}

TEST_CASE("bad parameters", "[reducer][errors]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  CHECK_THROWS_WITH(Reducer({}, backend),
                    Catch::Contains("at least one parameter"));
  CHECK_THROWS_WITH(Reducer({{"frozen", torch::ones({1})}}, backend),
                    Catch::Contains("Expected parameter frozen"));
  CHECK_THROWS_WITH(
      Reducer({{"a", leaf(1)}}, backend, Options().bucket_cap_mb(0)),
      Catch::Contains("to be positive, but got 0"));
  CHECK_THROWS_WITH(
      Reducer({{"a", leaf(1)}}, backend, Options().first_bucket_cap_mb(-2)),
      Catch::Contains("to be positive, but got none and -2"));
}

TEST_CASE("sizes of the first and of later buckets", "[reducer]") {
  const double mib = 1 << 20;
  const Reducer reducer(
      {{"a", leaf(1, {8})}, {"b", leaf(1, {1})}, {"c", leaf(1, {4})}},
      c10::make_intrusive<FakeBackend>(2),
      Options().first_bucket_cap_mb(16 / mib).bucket_cap_mb(32 / mib));
  CHECK(reducer.plan() == std::vector<std::vector<size_t>>{{2}, {1, 0}});
}

TEST_CASE("the reducer may go before the graph", "[reducer]") {
  const bool is_released = GENERATE(false, true);
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  auto a = leaf(1);
  torch::Tensor loss;
  {
    Reducer reducer({{"a", a}}, backend);
    loss = a.sum();
    if (is_released) {
      reducer.release();
    }
  }
  if (is_released) {
    loss.backward();
    CHECK(a.grad().allclose(torch::ones({3})));
  } else {
    CHECK_THROWS_WITH(loss.backward(),
                      Catch::Contains("to live until backward()"));
  }
  CHECK(backend->take_calls().empty());
}

// As fused optimizers make it: the gradients are parts of one flat buffer.
TEST_CASE("a tensor that the program has put into .grad gets the average",
          "[reducer]") {
  const bool skips = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    auto a = leaf(1, {2});
    auto b = leaf(1, {3});
    auto flat = torch::zeros({5});
    Reducer reducer(
        {{"a", a}, {"b", b}}, group, Options().find_unused_parameters(skips));
    a.mutable_grad() = flat.narrow(0, 0, 2);
    b.mutable_grad() = flat.narrow(0, 2, 3);
    for (int step = 1; step <= 3; ++step) {
      flat.zero_();
      const double slope = step * (group->getRank() + 1.0);
      auto loss = slope * a.sum();
      if (!skips || group->getRank() == 1) {
        loss = loss + slope * b.sum();
      }
      loss.backward();
      TORCH_CHECK(test::all_equal(flat.narrow(0, 0, 2), 1.5 * step), flat);
      TORCH_CHECK(
          test::all_equal(flat.narrow(0, 2, 3), (skips ? 1.0 : 1.5) * step),
          flat);
      TORCH_CHECK(a.grad().is_alias_of(flat) && b.grad().is_alias_of(flat));
    }
  });
}

// Autograd runs tasks nested deeper than 60 on a thread of its own.
TEST_CASE("passes nested in each other 61 times are one pass", "[reducer]") {
  run_ranks(2, [&](const Group& group) {
    constexpr int kDepth = 61;
    std::vector<NamedParameter> named;
    std::vector<torch::Tensor> weights;
    for (int i = 0; i < kDepth; ++i) {
      weights.push_back(leaf(1, {2}));
      named.push_back({c10::str("w", i), weights.back()});
    }
    auto first = leaf(1, {2});
    named.push_back({"first", first});
    Reducer reducer(named, group);
    // Each hook makes a pass inside the pass of the one before.
    const double slope = group->getRank() + 1.0;
    std::function<void(int)> pass = [&](int depth) {
      auto loss = (weights[depth] * slope).sum();
      if (depth + 1 < kDepth) {
        loss = loss * 1;
        loss.register_hook([&, depth](const torch::Tensor&) {
          const torch::AutoGradMode with_graph(true);
          pass(depth + 1);
        });
      }
      loss.backward();
    };
    for (int step = 0; step < 2; ++step) {
      for (const auto& each : named) {
        each.tensor.mutable_grad() = torch::Tensor();
      }
      auto loss = (first * slope).sum() * 1;
      loss.register_hook([&](const torch::Tensor&) {
        const torch::AutoGradMode with_graph(true);
        pass(0);
      });
      loss.backward();
      for (const auto& each : named) {
        TORCH_CHECK(test::all_equal(each.tensor.grad(), 1.5), each.name);
      }
    }
  });
}

}  // namespace reducer_test
}  // namespace ddp
