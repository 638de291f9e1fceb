#include "ddp/exchange.h"

#include <ATen/ops/embedding.h>

#include <chrono>
#include <future>
#include <map>

#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/exchanges/quantized_exchange.h"
#include "ddp/reduce/detail/pass_mark.h"
#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/exchange_ways.h"
#include "test/support/fake_backend.h"
#include "test/support/fake_exchange.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace exchange_test {

using Catch::Contains;
using test::backward;
using test::FakeBackend;
using test::FakeExchange;
using test::gauss;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using Calls = std::vector<std::string>;
using Options = DistributedDataParallelOptions;

torch::Tensor leaf(double value, at::IntArrayRef sizes = {3}) {
  return torch::full(sizes, value).requires_grad_();
}

/// Returns options with which every gradient fills a bucket.
Options small_buckets(std::shared_ptr<Exchange> exchange) {
  return Options()
      .exchange(std::move(exchange))
      .first_bucket_cap_mb(1e-6)
      .bucket_cap_mb(1e-6);
}

/// The example in exchange.h.
class Bf16Wire : public Exchange {
 public:
  explicit Bf16Wire(Group group) : group_(std::move(group)) {}

  void start(const GradientBucket& bucket) override {
    if (bucket.index == 0) {
      wires_.clear();
      works_.clear();
    }
    std::vector<at::Tensor> wire{bucket.payload.to(at::kBFloat16)};
    works_.push_back(group_->allreduce(wire));
    wires_.push_back(wire[0]);
  }
  void finish(const GradientBucket& bucket) override {
    works_[bucket.index]->wait();
    bucket.payload.copy_(wires_[bucket.index]);
  }

 private:
  Group group_;
  std::vector<at::Tensor> wires_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

/// A reduce-scatter, then an all-gather, of equal parts of a copy.
class ScatterGather : public Exchange {
 public:
  explicit ScatterGather(Group group) : group_(std::move(group)) {}

  void start(const GradientBucket& bucket) override {
    at::Tensor payload = bucket.payload;
    const int64_t size = group_->getSize();
    const int64_t padding = (size - payload.numel() % size) % size;
    auto copy = at::constant_pad_nd(payload, {0, padding});
    auto part = at::empty({copy.numel() / size}, payload.options());
    group_->_reduce_scatter_base(part, copy)->wait();
    group_->_allgather_base(copy, part)->wait();
    payload.copy_(copy.narrow(0, 0, payload.numel()));
  }
  void finish(const GradientBucket& /*bucket*/) override {}

 private:
  Group group_;
};

TEST_CASE("buckets start as they fill and finish at the end", "[exchange]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  const auto exchange = std::make_shared<FakeExchange>();
  auto early = leaf(1);
  auto late = leaf(1, {4});
  Reducer reducer(
      {{"late", late}, {"early", early}}, backend, small_buckets(exchange));
  Calls before_late;
  late.register_hook(
      [&](const torch::Tensor&) { before_late = exchange->take_calls(); });
  const auto step = [&] {
    auto loss = late.sum();
    loss = loss * early.sum();  // its gradient comes first
    backward(reducer, loss);
    return exchange->take_calls();
  };
  const Calls all{"start 0", "start 1", "finish 0", "finish 1"};
  CHECK(step() == all);  // the first pass records the order
  CHECK(before_late.empty());
  CHECK(step() == Calls{"start 1", "finish 0", "finish 1"});
  CHECK(before_late == Calls{"start 0"});
  // Collectives of the reducer itself: the plan once, and a status per pass.
  Calls collectives;
  for (const auto& call : backend->take_calls()) {
    collectives.push_back(c10::str(call.name, " ", call.numel));
  }
  const auto status = c10::str("allreduce ", detail::kMarkNumel);
  CHECK(collectives == Calls{"broadcast 2", status, status});
}

TEST_CASE("the bucket that an exchange gets", "[exchange]") {
  const auto exchange = std::make_shared<FakeExchange>();
  auto image = torch::ones({2, 3, 4, 5})
                   .contiguous(torch::MemoryFormat::ChannelsLast)
                   .requires_grad_();
  auto scalar = torch::ones({}).requires_grad_();
  Reducer reducer({{"image", image}, {"scalar", scalar}},
                  c10::make_intrusive<FakeBackend>(2),
                  Options().exchange(exchange));
  exchange->on_start = [](const GradientBucket& bucket) {
    TORCH_CHECK(bucket.index == 0 && bucket.count == 1 && bucket.is_last());
    TORCH_CHECK(!at::GradMode::is_enabled());
    TORCH_CHECK(bucket.payload.dim() == 1 && bucket.payload.numel() == 121);
    TORCH_CHECK(bucket.parameters.size() == 2);
    const auto gradients = bucket.gradients();
    for (size_t i = 0; i < 2; ++i) {
      const auto& [name, tensor, sparse] = bucket.parameters[i];
      TORCH_CHECK(gradients[i].sizes() == tensor.sizes(), name);
      TORCH_CHECK(gradients[i].strides() == tensor.strides(), name);
      const double slope = name == "image" ? 2 : 3;
      TORCH_CHECK(gradients[i].eq(slope).all().item<bool>(), name);
      gradients[i].add_(1);  // into the payload
    }
  };
  for (int step = 0; step < 3; ++step) {
    image.mutable_grad().reset();
    scalar.mutable_grad().reset();
    backward(reducer, 2 * image.sum() + 3 * scalar);
    CHECK(image.grad().eq(3).all().item<bool>());
    CHECK(scalar.grad().eq(4).all().item<bool>());
  }
}

TEST_CASE("gradients travel as bfloat16", "[exchange]") {
  const int size = GENERATE(2, 3, 4);
  const bool as_view = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    auto a = leaf(1, {33});
    auto b = leaf(1, {2, 5});
    Reducer reducer({{"a", a}, {"b", b}},
                    group,
                    small_buckets(std::make_shared<Bf16Wire>(group))
                        .gradient_as_bucket_view(as_view));
    const auto fine = torch::full({33}, 1.0f + 1.0f / 1024);  // not in bfloat16
    for (int step = 1; step <= 3; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      const double slope = group->getRank() + 1.0;
      backward(reducer, (a * fine).sum() * size + step * slope * b.sum());
      // Each rank's share of `a` is rounded to 1 before the sum.
      TORCH_CHECK(a.grad().eq(size).all().item<bool>(), a.grad());
      const auto mean = torch::full({2, 5}, step * gauss(size) / size);
      TORCH_CHECK(b.grad().allclose(mean, 1e-2), b.grad());
    }
  });
}

TEST_CASE("an exchange may divide a padded copy of a payload", "[exchange]") {
  const int size = GENERATE(2, 3, 4);
  run_ranks(size, [&](const Group& group) {
    auto a = leaf(1, {7});
    auto b = leaf(1, {2, 5});
    Reducer reducer({{"a", a}, {"b", b}},
                    group,
                    Options().exchange(std::make_shared<ScatterGather>(group)));
    for (int step = 1; step <= 3; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      const double slope = step * (group->getRank() + 1.0);
      backward(reducer, slope * a.sum() + 2 * slope * b.sum());
      const double mean = step * gauss(size) / size;
      TORCH_CHECK(a.grad().allclose(torch::full({7}, mean)), a.grad());
      TORCH_CHECK(b.grad().allclose(torch::full({2, 5}, 2 * mean)), b.grad());
    }
  });
}

TEST_CASE("an exchange may do all its work at the end", "[exchange]") {
  run_ranks(3, [](const Group& group) {
    const auto exchange = std::make_shared<FakeExchange>();
    exchange->on_finish = [&](const GradientBucket& bucket) {
      std::vector<at::Tensor> tensors{bucket.payload};
      group->allreduce(tensors)->wait();
    };
    auto a = leaf(1);
    auto b = leaf(1, {4});
    Reducer reducer({{"a", a}, {"b", b}}, group, small_buckets(exchange));
    for (int step = 1; step <= 3; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      backward(reducer, step * (group->getRank() + 1.0) * (a.sum() + b.sum()));
      TORCH_CHECK(a.grad().eq(step * 6).all().item<bool>(), a.grad());
      TORCH_CHECK(b.grad().eq(step * 6).all().item<bool>(), b.grad());
    }
  });
}

TEST_CASE("the scale is asked in each pass", "[exchange]") {
  struct Growing : FakeExchange {
    double scale(int ranks) const override { return ranks * ++passes; }
    mutable int passes = 0;
  };
  auto a = leaf(1);
  Reducer reducer({{"a", a}},
                  c10::make_intrusive<FakeBackend>(2),
                  Options().exchange(std::make_shared<Growing>()));
  for (int pass = 1; pass <= 3; ++pass) {
    a.mutable_grad().reset();
    backward(reducer, a.sum());
    CHECK(a.grad().eq(2 * pass).all().item<bool>());
  }
}

/// Loses small values, so the reducer must not let it carry the marks.
class Lossy : public AllReduce {
 public:
  using AllReduce::AllReduce;
  void start(const GradientBucket& bucket) override {
    bucket.payload.masked_fill_(bucket.payload.abs() < 10, 0);
    AllReduce::start(bucket);
  }
};

TEST_CASE("a lossy exchange does not lose a missing gradient", "[exchange]") {
  run_ranks(3, [&](const Group& group) {
    auto used = leaf(1);
    auto other = leaf(1);
    auto never = leaf(1);
    Reducer reducer({{"used", used}, {"other", other}, {"never", never}},
                    group,
                    Options()
                        .exchange(std::make_shared<Lossy>(group))
                        .find_unused_parameters(true));
    for (int step = 0; step < 3; ++step) {
      used.mutable_grad().reset();
      other.mutable_grad().reset();
      const bool skips = group->getRank() == 1;
      backward(reducer,
               skips ? 300 * used.sum() : 300 * (used.sum() + other.sum()));
      TORCH_CHECK(test::all_equal(used.grad(), 300) &&
                  test::all_equal(other.grad(), 200));
      TORCH_CHECK(!never.grad().defined());
    }
  });
}

TEST_CASE("unused parameters through an exchange", "[exchange]") {
  run_ranks(2, [](const Group& group) {
    auto everywhere = leaf(1);
    auto on_rank_1 = leaf(1);
    auto nowhere = leaf(1);
    Reducer reducer({{"everywhere", everywhere},
                     {"on_rank_1", on_rank_1},
                     {"nowhere", nowhere}},
                    group,
                    small_buckets(std::make_shared<Bf16Wire>(group))
                        .find_unused_parameters(true));
    const double slope = group->getRank() + 1.0;
    auto loss = slope * everywhere.sum();
    if (group->getRank() == 1) {
      loss = loss + slope * on_rank_1.sum();
    }
    backward(reducer, loss);
    TORCH_CHECK(everywhere.grad().allclose(torch::full({3}, 1.5)));
    TORCH_CHECK(on_rank_1.grad().allclose(torch::full({3}, 1.0)));
    TORCH_CHECK(!nowhere.grad().defined());
  });
}

TEST_CASE("sparse gradients go through an exchange that takes them",
          "[exchange][sparse]") {
  const auto exchange = std::make_shared<FakeExchange>();
  auto table = torch::zeros({5, 2}).requires_grad_();
  auto dense = leaf(1);
  Reducer reducer({{"table", table, true}, {"dense", dense}},
                  c10::make_intrusive<FakeBackend>(2),
                  Options().exchange(exchange));
  int sparse_ones = 0;
  exchange->on_start = [&](const GradientBucket& bucket) {
    if (bucket.payload.is_sparse()) {
      ++sparse_ones;
      TORCH_CHECK(bucket.parameters[0].name == "table");
      TORCH_CHECK(bucket.payload.is_coalesced());
      TORCH_CHECK(bucket.gradients()[0].is_same(bucket.payload));
      bucket.payload.mul_(2);
    }
  };
  for (int step = 1; step <= 3; ++step) {
    table.mutable_grad().reset();
    dense.mutable_grad().reset();
    const auto rows = torch::tensor({int64_t{3}, int64_t{3}});
    backward(
        reducer,
        dense.sum() + torch::embedding(table, rows, -1, false, true).sum());
    auto expected = torch::zeros({5, 2});
    expected[3] += 4;
    CHECK(table.grad().to_dense().equal(expected));
    CHECK(sparse_ones == step);
  }
}

TEST_CASE("an exchange runs in a world of one", "[exchange]") {
  const int size = GENERATE(1, 2);
  run_ranks(size, [&](const Group& group) {
    const auto doubling = [] {
      const auto exchange = std::make_shared<FakeExchange>();
      exchange->on_finish = [](const GradientBucket& bucket) {
        bucket.payload.mul_(2);
      };
      return exchange;
    };
    torch::nn::Linear net(4, 3);
    DistributedDataParallel model(
        net, Options().process_group(group).exchange(doubling()));
    TORCH_CHECK((model->process_group() == nullptr) == (size == 1));
    const auto expect_gradient = [&](double value) {
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        model->forward(torch::ones({1, 4})).sum().backward();
        TORCH_CHECK(net->weight.grad().eq(value).all().item<bool>());
      }
    };
    expect_gradient(2);
    if (size > 1) {
      return;
    }
    // Without an exchange, a model of one rank has no reducer; with one, it
    // gets one again.
    model->update_process_group(group, nullptr);
    expect_gradient(1);
    model->update_process_group(group, doubling());
    expect_gradient(2);
    model->update_process_group(group, doubling());
    expect_gradient(2);
  });
}

TEST_CASE("an exchange without a process group is refused",
          "[exchange][errors]") {
  torch::nn::Linear net(4, 3);
  const auto exchange =
      std::make_shared<AllReduce>(c10::make_intrusive<FakeBackend>(1));
  CHECK_THROWS_WITH(DistributedDataParallel(net, Options().exchange(exchange)),
                    Contains("call ddp::init_process_group()"));
}

TEST_CASE("a reducer refuses a misfit exchange at once", "[exchange][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  auto table = torch::zeros({5, 2}).requires_grad_();
  CHECK_THROWS_WITH(
      Reducer({{"table", table, true}},
              group,
              Options().exchange(std::make_shared<Bf16Wire>(group))),
      Contains("with this exchange") && Contains("sparse parameter table"));
  struct SliceOfMemory : FakeExchange {
    at::Tensor allocate(int64_t numel,
                        const at::TensorOptions& options) override {
      return at::zeros({numel + 3}, options).narrow(0, 3, numel);
    }
  };
  CHECK_THROWS_WITH(
      Reducer({{"a", leaf(1)}},
              group,
              Options().exchange(std::make_shared<SliceOfMemory>())),
      Contains("begins its storage") && Contains("at element 3"));
}

TEST_CASE("an exchange over some of the ranks is refused",
          "[exchange][errors]") {
  const auto two = c10::make_intrusive<FakeBackend>(2);
  const auto kind = GENERATE(0, 1, 2);
  const std::vector<std::shared_ptr<Exchange>> all{
      std::make_shared<AllReduce>(two, AllReduceOptions().mean(kind == 0)),
      std::make_shared<QuantizedExchange>(two),
      std::make_shared<PowerSGD>(two)};
  auto a = leaf(1, {8, 6});
  Reducer reducer({{"a", a}},
                  c10::make_intrusive<FakeBackend>(4),
                  Options().exchange(all[kind]));
  CHECK_THROWS_WITH(
      backward(reducer, a.sum()),
      Contains("over the 4 ranks of the model, but got one over 2"));
}

/// An all-reduce with one call that throws.
class Throwing : public AllReduce {
 public:
  Throwing(Group group, bool in_start, int pass)
      : AllReduce(std::move(group)), in_start_(in_start), pass_(pass) {}

  void start(const GradientBucket& bucket) override {
    passes_ += bucket.index == 0;
    TORCH_CHECK(!(in_start_ && is_there(bucket)), "no luck in start");
    AllReduce::start(bucket);
  }
  void finish(const GradientBucket& bucket) override {
    TORCH_CHECK(in_start_ || !is_there(bucket), "no luck in finish");
    AllReduce::finish(bucket);
  }

 private:
  bool is_there(const GradientBucket& bucket) const {
    return passes_ == pass_ && bucket.index == 1;
  }

  bool in_start_;
  int pass_;
  int passes_ = 0;
};

/// Runs passes without a reducer. In the first one rank `first` calls `start`
/// for all buckets before the other rank does, in the next one the other.
void start_in_turns(Exchange& exchange,
                    int rank,
                    int first,
                    size_t count,
                    std::vector<std::promise<void>>& has_started) {
  const std::vector<NamedParameter> parameters{{"matrix", leaf(1, {6, 10})},
                                               {"vector", leaf(1, {4})}};
  std::vector<GradientBucket> buckets;
  for (size_t i = 0; i < count; ++i) {
    buckets.push_back(
        {i, count, exchange.allocate(64, torch::kFloat).fill_(1), parameters});
  }
  for (size_t pass = 0; pass < has_started.size(); ++pass) {
    const bool is_first = (first + pass) % 2 == static_cast<size_t>(rank);
    if (!is_first) {
      auto started = has_started[pass].get_future();
      TORCH_CHECK(started.wait_for(std::chrono::seconds(30)) ==
                      std::future_status::ready,
                  "start waits for another rank in pass ",
                  pass);
    }
    for (const auto& bucket : buckets) {
      exchange.start(bucket);
    }
    if (is_first) {
      has_started[pass].set_value();
    }
    for (const auto& bucket : buckets) {
      exchange.finish(bucket);
    }
  }
}

TEST_CASE("no exchange waits for another rank in start", "[exchange]") {
  constexpr size_t kPasses = 4;
  const int first = GENERATE(0, 1);
  // More than places on a board of sums in shared memory.
  const size_t count = GENERATE(2, 300);
  const bool over_gloo = GENERATE(true, false);
  for (const auto& way : test::exchange_ways()) {
    if (way.waits_in_start ||
        (count > 2 && way.name != std::string("SharedMemoryAllReduce"))) {
      continue;
    }
    INFO(way.name << ", " << count << " buckets, first rank " << first);
    std::vector<std::promise<void>> has_started(kPasses);
    const auto run = over_gloo ? try_ranks : test::try_host_ranks;
    const auto errors = run(2, [&](const Group& group) {
      start_in_turns(
          *way.make(group), group->getRank(), first, count, has_started);
    });
    CHECK(errors == std::vector<std::string>(2));
  }
}

TEST_CASE("an exchange that throws on one rank ends all",
          "[exchange][errors]") {
  const bool in_start = GENERATE(false, true);
  const int pass = GENERATE(1, 2);  // recording, reducing
  const auto errors = try_ranks(3, [&](const Group& group) {
    const bool is_bad = group->getRank() == 1;
    auto a = leaf(1);
    auto b = leaf(1);
    auto c = leaf(1);
    Reducer reducer({{"a", a}, {"b", b}, {"c", c}},
                    group,
                    small_buckets(std::make_shared<Throwing>(
                        group, in_start, is_bad ? pass : 0)));
    for (int step = 1; step <= 4; ++step) {
      backward(reducer, a.sum() + b.sum() + c.sum());
    }
  });
  CHECK_THAT(errors[1],
             Contains(in_start ? "no luck in start" : "no luck in finish"));
  for (const int rank : {0, 2}) {
    CHECK_THAT(errors[rank],
               Contains("rank " + std::to_string(rank)) &&
                   Contains("another rank has left"));
  }
}

TEST_CASE("after an exception nothing more is tried", "[exchange][errors]") {
  enum class Where { start, finish, action };
  const auto where = GENERATE(Where::start, Where::finish, Where::action);
  const bool recording = GENERATE(false, true);
  const auto exchange = std::make_shared<FakeExchange>();
  auto a = leaf(1);
  auto b = leaf(1);
  Reducer reducer({{"a", a}, {"b", b}},
                  c10::make_intrusive<FakeBackend>(2),
                  small_buckets(exchange));
  if (!recording) {
    backward(reducer, a.sum() + b.sum());
    exchange->take_calls();
  }
  const auto throws = [](const GradientBucket& bucket) {
    TORCH_CHECK(bucket.is_last(), "no luck");
  };
  if (where == Where::action) {
    reducer.set_functions({.at_end = [] { TORCH_CHECK(false, "no luck"); }});
  } else {
    (where == Where::start ? exchange->on_start : exchange->on_finish) = throws;
  }
  CHECK_THROWS_WITH(backward(reducer, a.sum() + b.sum()), Contains("no luck"));
  const std::map<Where, Calls> expected{
      {Where::start, {"start 0", "abandon"}},
      {Where::finish, {"start 0", "start 1", "finish 0", "abandon"}},
      {Where::action,
       {"start 0", "start 1", "finish 0", "finish 1", "abandon"}}};
  CHECK(exchange->take_calls() == expected.at(where));
  CHECK_THROWS_WITH(reducer.before_forward(), Contains("no luck"));
  CHECK_THROWS_WITH(backward(reducer, a.sum() + b.sum()), Contains("no luck"));
  CHECK(exchange->take_calls().empty());
}

}  // namespace exchange_test
}  // namespace ddp
