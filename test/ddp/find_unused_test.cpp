// find_unused_parameters: a pass that misses gradients finds the unused
// parameters by the used map. All other passes cost nothing more.
#include <algorithm>

#include <torch/types.h>

#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/gradients.h"
#include "test/support/transports.h"

namespace ddp {
namespace find_unused_test {

using test::any_transport;
using test::FakeBackend;
using test::Group;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

Options finds(const Group& group) {
  return test::default_options(group).find_unused_parameters(true);
}

/// Leaves of several sizes and a reducer over them.
struct Side {
  Side(const Group& group, Options options, c10::Device device = c10::kCPU) {
    std::vector<NamedParameter> named;
    for (const int64_t size : {101, 7, 53, 1, 211, 30}) {
      leaves.push_back(test::leaf({size}, device));
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

TEST_CASE("unused gradients count as zeros", "[find_unused]") {
  const auto& transport = any_transport();
  const int size = GENERATE(1, 2, 3, 4);
  const bool as_view = GENERATE(false, true);
  transport.run_ranks(size, [&](const Group& group, c10::Device device) {
    const int rank = group->getRank();
    const Side side(
        group, finds(group).gradient_as_bucket_view(as_view), device);
    for (int pass = 0; pass < 12; ++pass) {
      std::vector<std::vector<size_t>> used;
      for (int each = 0; each < size; ++each) {
        used.push_back(some(pass,
                            side.leaves.size(),
                            at::detail::createCPUGenerator(100 * pass + each)));
      }
      std::vector<Tensor> slopes;
      for (const auto& leaf : side.leaves) {
        slopes.push_back(torch::full_like(leaf, size * (rank + 1.0)));
      }
      side.pass(slopes, used[static_cast<size_t>(rank)]);
      for (size_t i = 0; i < side.leaves.size(); ++i) {
        double expected = 0;
        for (int each = 0; each < size; ++each) {
          const auto& its = used[static_cast<size_t>(each)];
          expected += std::count(its.begin(), its.end(), i) * (each + 1);
        }
        const auto& grad = side.leaves[i].grad();
        TORCH_CHECK(
            expected == 0 ? !grad.defined() : test::all_equal(grad, expected),
            "gradient ",
            i,
            " of pass ",
            pass,
            ": ",
            grad);
        side.leaves[i].mutable_grad().reset();
      }
    }
  });
}

TEST_CASE("ranks may leave out different parameters in the first pass",
          "[find_unused]") {
  const auto& transport = any_transport();
  const int size = GENERATE(2, 3);
  transport.run_ranks(size, [&](const Group& group, c10::Device device) {
    const Side side(group, finds(group), device);
    const int rank = group->getRank();
    std::vector<Tensor> slopes;
    for (const auto& leaf : side.leaves) {
      slopes.push_back(torch::full_like(leaf, size * (rank + 1)));
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

TEST_CASE("a pass with all gradients makes no further collective",
          "[find_unused]") {
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
  CHECK(calls_of(Options().find_unused_parameters(true)) ==
        calls_of(Options()));
}

TEST_CASE("a rank without inputs uses nothing", "[find_unused]") {
  const auto& transport = any_transport();
  transport.run_ranks(3, [](const Group& group, c10::Device device) {
    const Side side(group, finds(group), device);
    std::vector<Tensor> slopes;
    for (const auto& leaf : side.leaves) {
      slopes.push_back(torch::full_like(leaf, 3));
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

}  // namespace find_unused_test
}  // namespace ddp
