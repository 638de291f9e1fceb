// find_unused_on_demand: a pass that misses gradients finds the unused
// parameters by the used map, as find_unused_parameters does. All other passes
// cost nothing more.
#include <torch/types.h>

#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace unused_on_demand_test {

using Catch::Contains;
using test::FakeBackend;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

const Options kOnDemand = Options().find_unused_on_demand(true);
const Options kAlways = Options().find_unused_parameters(true);

/// Leaves of several sizes and a reducer over them.
struct Side {
  Side(const Group& group, Options options) {
    std::vector<NamedParameter> named;
    for (const int64_t size : {101, 7, 53, 1, 211, 30}) {
      leaves.push_back(test::leaf({size}));
      named.push_back({c10::str("p", named.size()), leaves.back()});
    }
    // Caps of 400 bytes make several buckets.
    reducer = std::make_unique<Reducer>(
        named, group, options.first_bucket_cap_mb(4e-4).bucket_cap_mb(4e-4));
  }

  /// Runs a pass in which the leaves `used` get gradients, the last one first.
  void pass(const std::vector<Tensor>& slopes,
            const std::vector<size_t>& used) const {
    Tensor loss;
    for (const size_t i : used) {
      const auto term = (leaves[i] * slopes[i]).sum();
      loss = loss.defined() ? loss + term : term * 1;
    }
    test::backward(*reducer, loss);
  }

  std::vector<Tensor> leaves;
  std::unique_ptr<Reducer> reducer;
};

/// Collects the warnings of this thread.
class Warnings : public c10::WarningHandler {
 public:
  Warnings() : before_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
  }
  ~Warnings() override { c10::WarningUtils::set_warning_handler(before_); }
  void process(const c10::Warning& warning) override {
    texts.push_back(warning.msg());
  }

  std::vector<std::string> texts;

 private:
  c10::WarningHandler* before_;
};

/// Returns the leaves used in a pass: in every third pass all, else a few,
/// which differ between ranks.
std::vector<size_t> some(int64_t pass, size_t count, at::Generator generator) {
  const auto draws = torch::rand({static_cast<int64_t>(count)}, generator);
  std::vector<size_t> used;
  for (size_t i = 0; i < count; ++i) {
    if (pass % 3 == 0 || draws.const_data_ptr<float>()[i] < 0.5) {
      used.push_back(i);
    }
  }
  return used.empty() ? std::vector<size_t>{2} : used;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.defined() ? b.defined() && torch::equal(a, b) : !b.defined();
}

// With three or more ranks the rounding of a sum depends on its place in the
// bucket. Gradients come in the order in which both sides have planned.
TEST_CASE("on demand equals find_unused_parameters, bit for bit",
          "[unused_on_demand]") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool as_view = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    const Warnings warnings;
    const auto generator =
        at::detail::createCPUGenerator(100 + group->getRank());
    const Side ours(group, Options(kOnDemand).gradient_as_bucket_view(as_view));
    const Side theirs(group, Options(kAlways).gradient_as_bucket_view(as_view));
    for (int pass = 0; pass < 12; ++pass) {
      const auto used = some(pass, ours.leaves.size(), generator);
      std::vector<Tensor> slopes;
      for (const auto& leaf : ours.leaves) {
        slopes.push_back(torch::randn(leaf.sizes(), generator));
      }
      ours.pass(slopes, used);
      theirs.pass(slopes, used);
      TORCH_CHECK(ours.reducer->plan() == theirs.reducer->plan());
      for (size_t i = 0; i < ours.leaves.size(); ++i) {
        TORCH_CHECK(same(ours.leaves[i].grad(), theirs.leaves[i].grad()),
                    "gradient ",
                    i,
                    " of pass ",
                    pass);
        if (pass % 4 != 1) {  // else gradients add up
          ours.leaves[i].mutable_grad().reset();
          theirs.leaves[i].mutable_grad().reset();
        }
      }
    }
  });
}

TEST_CASE("the first pass may miss some, others on each rank",
          "[unused_on_demand]") {
  const int size = GENERATE(2, 3);
  run_ranks(size, [&](const Group& group) {
    const Warnings warnings;
    const Side side(group, kOnDemand);
    const int rank = group->getRank();
    std::vector<Tensor> slopes;
    for (const auto& leaf : side.leaves) {
      slopes.push_back(torch::full(leaf.sizes(), size * (rank + 1)));
    }
    for (int pass = 0; pass < 3; ++pass) {
      // Each rank uses one leaf of its own, and all ranks use the last leaf.
      side.pass(slopes, {static_cast<size_t>(rank), 5});
      for (int i = 0; i < 6; ++i) {
        const auto& grad = side.leaves[i].grad();
        if (i < size) {
          TORCH_CHECK(test::all_equal(grad, i + 1), i, " ", grad);
        } else if (i == 5) {
          TORCH_CHECK(test::all_equal(grad, test::gauss(size)), grad);
        } else {
          TORCH_CHECK(!grad.defined(), i, " ", grad);
        }
        side.leaves[i].mutable_grad().reset();
      }
    }
  });
}

TEST_CASE("rank 0 warns once, of what each rank has missed",
          "[unused_on_demand]") {
  run_ranks(3, [](const Group& group) {
    const Warnings warnings;
    const Side side(group, kOnDemand);
    const auto slopes = side.leaves;
    const bool misses = group->getRank() == 1;
    side.pass(slopes, {0, 1, 2, 3, 4, 5});
    TORCH_CHECK(warnings.texts.empty());
    for (int pass = 0; pass < 3; ++pass) {
      side.pass(slopes,
                misses ? std::vector<size_t>{2, 3, 4, 5}
                       : std::vector<size_t>{0, 1, 2, 3, 4});
    }
    if (group->getRank() != 0) {
      TORCH_CHECK(warnings.texts.empty());
      return;
    }
    TORCH_CHECK(warnings.texts.size() == 1, warnings.texts);
    const auto& text = warnings.texts[0];
    TORCH_CHECK(
        text.find("on ranks 0, 2: p5; on rank 1: p0, p1;") != std::string::npos,
        text);
  });
}

TEST_CASE("a pass that brings all costs nothing more", "[unused_on_demand]") {
  const auto calls_of = [](const Options& options) {
    const auto backend = c10::make_intrusive<FakeBackend>(2);
    const Side side(backend, options);
    std::string calls;
    for (int pass = 0; pass < 3; ++pass) {
      side.pass(side.leaves, {0, 1, 2, 3, 4, 5});
      for (const auto& call : backend->take_calls()) {
        calls += c10::str(call.name, " ", call.numel, "; ");
      }
    }
    return calls;
  };
  CHECK(calls_of(kOnDemand) == calls_of(Options()));
}

TEST_CASE("what is no missing gradient stays an error on demand",
          "[unused_on_demand][errors]") {
  const bool misses = GENERATE(false, true);
  const auto errors = try_ranks(3, [&](const Group& group) {
    const Warnings warnings;
    const Side side(group, kOnDemand);
    const bool is_odd = group->getRank() == 1;
    side.pass(side.leaves, {0, 1, 2, 3, 4, 5});
    side.leaves[3].requires_grad_(!is_odd);
    side.pass(side.leaves,
              misses && is_odd ? std::vector<size_t>{0, 1, 2, 4}
                               : std::vector<size_t>{0, 1, 2, 3, 4, 5});
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("frozen: rank 0: none, rank 1: p3, rank 2: none. "));
  }
}

TEST_CASE("a rank without inputs uses nothing on demand",
          "[unused_on_demand]") {
  run_ranks(3, [](const Group& group) {
    const Warnings warnings;
    const Side side(group, kOnDemand);
    std::vector<Tensor> slopes;
    for (const auto& leaf : side.leaves) {
      slopes.push_back(torch::full(leaf.sizes(), 3));
    }
    const int rank = group->getRank();
    for (int pass = 0; pass < 3; ++pass) {
      if (rank == 2) {
        side.reducer->shadow_pass(3);
      } else {
        side.pass(slopes,
                  rank == 0 ? std::vector<size_t>{1, 2, 3, 4}
                            : std::vector<size_t>{0, 1, 2, 3, 4});
      }
      TORCH_CHECK(test::all_equal(side.leaves[0].grad(), 1));
      TORCH_CHECK(test::all_equal(side.leaves[1].grad(), 2));
      TORCH_CHECK(!side.leaves[5].grad().defined());
      for (const auto& leaf : side.leaves) {
        leaf.mutable_grad().reset();
      }
    }
  });
}

TEST_CASE("on demand and always are two options", "[unused_on_demand]") {
  CHECK_THROWS_WITH(
      Reducer({{"a", test::leaf({1})}},
              c10::make_intrusive<FakeBackend>(2),
              Options(kOnDemand).find_unused_parameters(true)),
      Contains("Expected find_unused_parameters, find_unused_on_demand"));
}

}  // namespace unused_on_demand_test
}  // namespace ddp
