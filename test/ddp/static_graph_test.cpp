// static_graph: the first pass counts how often each gradient comes. Later
// passes wait for as many, and do not wait for parameters that had none.
#include <algorithm>

#include <torch/autograd.h>
#include <torch/types.h>

#include "ddp/reduce/detail/unused_parameters.h"
#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/fake_backend.h"
#include "test/support/fake_exchange.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"
#include "test/support/nested_pass.h"
#include "test/support/transports.h"

namespace ddp {
namespace static_graph_test {

using Catch::Contains;
using detail::StaticGraph;
using test::any_transport;
using test::FakeBackend;
using test::Group;
using test::leaf;
using test::nested;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

const Options kStatic = Options().static_graph(true);

Options fixed(const Group& group) {
  return test::default_options(group).static_graph(true);
}

TEST_CASE("a graph is learnt in the first pass and compared in the others",
          "[static_graph]") {
  StaticGraph graph(4);
  for (const size_t index : {2, 0, 2, 3}) {
    CHECK_FALSE(graph.add(index));
  }
  CHECK(graph.learn() == std::vector<size_t>{0, 2, 3});
  CHECK(graph.unused() == std::vector<size_t>{1});
  CHECK(graph.changes().empty());
  graph.reset();
  SECTION("the same in another order") {
    CHECK(graph.add(3));
    CHECK_FALSE(graph.add(2));
    CHECK(graph.add(2));
    CHECK(graph.add(0));
    CHECK(graph.changes().empty());
  }
  SECTION("more, fewer, and one that had none") {
    CHECK(graph.add(3));
    CHECK_FALSE(graph.add(3));
    CHECK_FALSE(graph.add(2));
    CHECK_FALSE(graph.add(1));
    CHECK(graph.add(0));
    const auto changes = graph.changes();
    REQUIRE(changes.size() == 3);
    CHECK((changes[0].index == 1 && changes[0].expected == 0 &&
           changes[0].came == 1));
    CHECK((changes[1].index == 2 && changes[1].expected == 2 &&
           changes[1].came == 1));
    CHECK((changes[2].index == 3 && changes[2].came == 2));
  }
}

// For the loss s w w x the gradient of w is 2 s w x, and that of x is s w w.
TEST_CASE("a gradient may come twice in a pass", "[static_graph]") {
  const bool as_view = GENERATE(false, true);
  const bool tiny_buckets = GENERATE(false, true);
  const auto& transport = any_transport();
  transport.run_ranks(3, [&](const Group& group, c10::Device device) {
    auto x = leaf({3}, device);
    auto w = torch::full({3}, 2.0, device).requires_grad_();
    auto options = fixed(group).gradient_as_bucket_view(as_view);
    if (tiny_buckets) {
      options.first_bucket_cap_mb(1e-6).bucket_cap_mb(1e-6);
    }
    Reducer reducer({{"x", x}, {"w", w}}, group, options);
    for (int pass = 1; pass <= 4; ++pass) {
      const bool adds_up = pass == 3;
      if (!adds_up) {
        x.mutable_grad().reset();
        w.mutable_grad().reset();
      }
      const double slope = pass * group->getRank();
      test::backward(reducer, (slope * nested(nested(x * 1, w), w)).sum());
      const int sum = adds_up ? 2 + 3 : pass;
      TORCH_CHECK(test::all_equal(w.grad(), 4 * sum), w.grad());
      TORCH_CHECK(test::all_equal(x.grad(), 4 * sum), x.grad());
    }
  });
}

TEST_CASE("no pass waits for parameters that the first one left out",
          "[static_graph]") {
  any_transport().run_ranks(3, [](const Group& group, c10::Device device) {
    const int rank = group->getRank();
    auto all = leaf({3}, device), one = leaf({2}, device);
    auto none = leaf({4}, device);
    Reducer reducer({{"all", all}, {"one", one}, {"none", none}},
                    group,
                    fixed(group).first_bucket_cap_mb(1e-6).bucket_cap_mb(1e-6));
    none.mutable_grad() = torch::full({4}, rank + 7.0, device);
    for (int pass = 1; pass <= 4; ++pass) {
      all.mutable_grad().reset();
      one.mutable_grad().reset();
      auto loss = pass * rank * all.sum();
      if (rank == 2) {
        loss = loss + 3 * pass * one.sum();
      }
      test::backward(reducer, loss);
      TORCH_CHECK(test::all_equal(all.grad(), pass), all.grad());
      TORCH_CHECK(test::all_equal(one.grad(), pass), one.grad());
      TORCH_CHECK(test::all_equal(none.grad(), rank + 7), none.grad());
    }
  });
}

/// A peer that uses all three parameters.
struct OthersUseAll : FakeBackend {
  using FakeBackend::FakeBackend;
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    if (tensors[0].numel() == 3) {  // the used map
      tensors[0] += 1;
    }
    return FakeBackend::allreduce(tensors, options);
  }
};

TEST_CASE("a parameter that no rank has used is never sent", "[static_graph]") {
  const bool as_view = GENERATE(false, true);
  const bool rank_1_uses_some = GENERATE(false, true);
  test::run_ranks(3, [&](const Group& group) {
    const int rank = group->getRank();
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    auto used = leaf({100}), some = leaf({1000}), never = leaf({10'000});
    auto rows = leaf({10, 3});
    Reducer reducer(
        {{"rows", rows, /*sparse=*/true},
         {"used", used},
         {"some", some},
         {"never", never}},
        counted,
        Options(kStatic).gradient_as_bucket_view(as_view).bucket_cap_mb(1e-4));
    never.mutable_grad() = torch::full({10'000}, 7.0);
    for (int pass = 1; pass <= 3; ++pass) {
      used.mutable_grad().reset();
      some.mutable_grad().reset();
      counted->take();
      auto loss = 3 * pass * used.sum();
      if (rank_1_uses_some && rank == 1) {
        loss = loss + 3 * pass * some.sum();
      }
      test::backward(reducer, loss);
      const auto bytes = counted->take().all_reduce;
      const int64_t floats = rank_1_uses_some ? 1100 : 100;
      TORCH_CHECK(bytes >= 4 * floats && bytes < 4 * floats + 300, bytes);
      TORCH_CHECK(test::all_equal(used.grad(), 3 * pass), used.grad());
      TORCH_CHECK(rank_1_uses_some ? test::all_equal(some.grad(), pass)
                                   : !some.grad().defined());
      TORCH_CHECK(test::all_equal(never.grad(), 7) && !rows.grad().defined());
    }
    size_t planned = 0;
    for (const auto& bucket : reducer.plan()) {
      planned += bucket.size();
    }
    TORCH_CHECK(planned == (rank_1_uses_some ? 2 : 1));
  });
}

// In the first pass of the other ranks, rank 1 has no inputs.
TEST_CASE("a late rank uses a parameter that no rank used before",
          "[static_graph][errors]") {
  const bool uses_more = GENERATE(false, true);
  const auto errors = try_ranks(3, [&](const Group& group) {
    auto used = leaf({3}), left_out = leaf({3});
    Reducer reducer({{"used", used}, {"left_out", left_out}}, group, kStatic);
    for (int pass = 0; pass < 3; ++pass) {
      used.mutable_grad().reset();
      if (pass == 0 && group->getRank() == 1) {
        reducer.shadow_pass(3);
        continue;
      }
      auto loss = 3 * used.sum();
      if (uses_more && group->getRank() == 1) {
        loss = loss + left_out.sum();
      }
      test::backward(reducer, loss);
      TORCH_CHECK(test::all_equal(used.grad(), pass == 0 ? 2 : 3));
    }
  });
  if (uses_more) {
    CHECK_THAT(errors[1],
               Contains("Expected no gradient for parameter left_out"));
  } else {
    CHECK(errors == std::vector<std::string>(3));
  }
}

TEST_CASE("buckets of unused parameters start at once, passes cost the same",
          "[static_graph]") {
  const auto exchange = std::make_shared<test::FakeExchange>();
  const auto backend = c10::make_intrusive<OthersUseAll>(2);
  auto unused = leaf({2}), early = leaf({3}), late = leaf({4});
  Reducer reducer({{"late", late}, {"early", early}, {"unused", unused}},
                  backend,
                  Options(kStatic)
                      .exchange(exchange)
                      .first_bucket_cap_mb(1e-6)
                      .bucket_cap_mb(1e-6));
  std::vector<std::string> seen;
  late.register_hook([&](const Tensor&) { seen = exchange->take_calls(); });
  const auto pass = [&] {
    backend->take_calls();
    auto loss = late.sum();
    test::backward(reducer, loss * early.sum());
    return backend->take_calls().size();
  };
  pass();
  exchange->take_calls();
  // `unused` has no gradient on this rank, so the plan ends with it.
  CHECK(reducer.plan() == std::vector<std::vector<size_t>>{{1}, {0}, {2}});
  CHECK(pass() == 1);  // the status, of an exchange that does not carry it
  CHECK(seen == std::vector<std::string>{"start 0"});
  CHECK(exchange->take_calls() ==
        std::vector<std::string>{
            "start 1", "start 2", "finish 0", "finish 1", "finish 2"});
}

TEST_CASE("a graph that changes is an error with names",
          "[static_graph][errors]") {
  enum class Change { more, fewer, used, unused };
  const auto change =
      GENERATE(Change::more, Change::fewer, Change::used, Change::unused);
  const auto errors = try_ranks(3, [&](const Group& group) {
    auto x = leaf({3}), w = leaf({3}), sometimes = leaf({3});
    Reducer reducer(
        {{"x", x}, {"w", w}, {"sometimes", sometimes}},
        group,
        Options(kStatic).first_bucket_cap_mb(1e-6).bucket_cap_mb(1e-6));
    for (int pass = 0; pass < 4; ++pass) {
      const bool is_odd = pass == 2 && group->getRank() == 1;
      auto y = nested(nested(x * 1, w), w);
      if (is_odd && change == Change::more) {
        y = nested(y, w);
      }
      if (is_odd && change == Change::fewer) {
        y = nested(x * 1, w);
      }
      if (is_odd ? change == Change::used : change == Change::unused) {
        y = y + sometimes;
      }
      test::backward(reducer, y.sum());
    }
  });
  const std::map<Change, std::string> texts{
      {Change::more, "on rank 1: w (3 times instead of 2);"},
      {Change::fewer, "on rank 1: w (1 times instead of 2);"},
      {Change::used, "on rank 1: sometimes (1 times instead of 0);"},
      {Change::unused, "on rank 1: sometimes (0 times instead of 1);"}};
  CHECK_THAT(errors[1], Contains(texts.at(change)));
  CHECK_THAT(errors[1], Contains("static_graph"));
  CHECK_THAT(errors[0], Contains("another rank has left"));
}

TEST_CASE("an unused parameter with a gradient of this rank alone is told",
          "[static_graph][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    auto used = leaf({3}), unused = leaf({3});
    Reducer reducer({{"used", used}, {"unused", unused}}, group, kStatic);
    for (int pass = 0; pass < 2; ++pass) {
      test::backward(reducer, used.sum());
      if (group->getRank() == 1) {
        const NoSyncGuard no_sync(reducer);
        unused.sum().backward();
      }
    }
  });
  CHECK_THAT(errors[1],
             Contains("on rank 1: unused (in a pass that was not reduced);"));
}

TEST_CASE("a static graph with frozen parameters and ranks without inputs",
          "[static_graph]") {
  any_transport().run_ranks(3, [](const Group& group, c10::Device device) {
    const int rank = group->getRank();
    auto a = leaf({3}, device), b = leaf({3}, device), none = leaf({2}, device);
    Reducer reducer({{"a", a}, {"b", b}, {"none", none}}, group, fixed(group));
    for (int pass = 1; pass <= 5; ++pass) {
      b.requires_grad_(pass != 3);
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      if (pass >= 4 && rank == 2) {
        reducer.shadow_pass(3);
      } else {
        test::backward(reducer, (3 * pass * (a + b)).sum());
      }
      const double expected = pass >= 4 ? 2 * pass : 3 * pass;
      TORCH_CHECK(test::all_equal(a.grad(), expected), a.grad());
      TORCH_CHECK(pass == 3 ? !b.grad().defined()
                            : test::all_equal(b.grad(), expected));
      TORCH_CHECK(!none.grad().defined());
    }
  });
}

TEST_CASE("a parameter that some ranks leave out may be frozen",
          "[static_graph]") {
  const int uses = GENERATE(0, 1, 2);
  const auto& transport = any_transport();
  transport.run_ranks(3, [&](const Group& group, c10::Device device) {
    const bool is_used = group->getRank() == uses;
    auto all = leaf({2}, device), some = leaf({3}, device);
    Reducer reducer({{"all", all}, {"some", some}}, group, fixed(group));
    for (int pass = 1; pass <= 6; ++pass) {
      const bool is_frozen = pass == 3 || pass == 4;
      some.requires_grad_(!is_frozen);
      all.mutable_grad().reset();
      some.mutable_grad().reset();
      auto loss = (3 * pass * all).sum();
      test::backward(reducer, is_used ? loss + (3 * pass * some).sum() : loss);
      TORCH_CHECK(test::all_equal(all.grad(), 3 * pass), all.grad());
      TORCH_CHECK(is_frozen ? !some.grad().defined()
                            : test::all_equal(some.grad(), pass));
    }
  });
}

// The parameters of `mine` are in the first graph of one rank alone, so a pass
// begins with them on the other ranks, and ends with them on that rank.
TEST_CASE("parameters of branches are frozen in any order", "[static_graph]") {
  const auto& transport = any_transport();
  const bool is_tiny = GENERATE(false, true);
  transport.run_ranks(3, [&](const Group& group, c10::Device device) {
    const int rank = group->getRank();
    std::vector<Tensor> leaves;
    std::vector<NamedParameter> named;
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
      leaves.push_back(leaf({2}, device));
      named.push_back({name, leaves.back()});
    }
    auto options = fixed(group);
    if (is_tiny) {
      options.first_bucket_cap_mb(1e-6).bucket_cap_mb(1e-6);
    }
    Reducer reducer(named, group, options);
    // Rank r uses the leaves i with i % 3 == r, and all ranks the last one.
    const std::vector<std::vector<size_t>> frozen{
        {}, {4}, {4, 0}, {4, 0, 2}, {3, 2, 0}, {1, 3}, {}, {2, 1}, {3, 1, 0}};
    for (size_t pass = 0; pass < frozen.size(); ++pass) {
      for (auto& each : leaves) {
        each.requires_grad_();
        each.mutable_grad().reset();
      }
      for (const size_t i : frozen[pass]) {
        leaves[i].requires_grad_(false);
      }
      auto loss = 3 * leaves[5].sum();
      for (size_t i = static_cast<size_t>(rank); i < 5; i += 3) {
        loss = loss + 3 * leaves[i].sum();
      }
      test::backward(reducer, loss);
      for (size_t i = 0; i < leaves.size(); ++i) {
        const auto& grad = leaves[i].grad();
        const auto& all = frozen[pass];
        const bool is_frozen = std::count(all.begin(), all.end(), i) > 0;
        TORCH_CHECK(
            is_frozen ? !grad.defined() : test::all_equal(grad, i == 5 ? 3 : 1),
            "pass ",
            pass,
            ", gradient ",
            i,
            ": ",
            grad);
      }
    }
  });
}

TEST_CASE("a static graph takes no other option for unused parameters",
          "[static_graph][errors]") {
  const auto backend = c10::make_intrusive<FakeBackend>(2);
  CHECK_THROWS_WITH(Reducer({{"a", leaf({1})}},
                            backend,
                            Options(kStatic).find_unused_parameters(true)),
                    Contains("but got both"));
}

}  // namespace static_graph_test
}  // namespace ddp
