// Gradients that a function of the graph leaves undefined, as Python's None.
// The expected values are of PyTorch's DDP. Its static graph fails after a
// no_sync, and trains each rank alone by a gradient that no rank had in the
// first pass.
#include <optional>

#include <torch/autograd.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/reducer.h"
#include "test/support/gradients.h"
#include "test/support/nested_pass.h"
#include "test/support/transports.h"

namespace ddp {
namespace undefined_gradients_test {

using Catch::Contains;
using test::any_transport;
using test::Group;
using test::leaf;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

/// y = x. The gradient of the weight is `slope` in each element, or undefined
/// if the slope is 0.
struct Maybe : torch::autograd::Function<Maybe> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x,
                        const Tensor& weight,
                        double slope) {
    context->save_for_backward({weight});
    context->saved_data["slope"] = slope;
    return x * 1;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const double slope = context->saved_data["slope"].toDouble();
    const auto weight = context->get_saved_variables()[0];
    return {gradients[0],
            slope == 0 ? Tensor() : torch::full_like(weight, slope),
            Tensor()};
  }
};

enum class Mode { refuses, finds, fixed };
enum class Gives { none, one, all };
/// The gradient that the weight has before a reduced pass.
enum class Earlier { none, of_a_local_pass, undefined_in_a_local_pass, set };

Options options_for(Mode mode, const Group& group) {
  return test::default_options(group)
      .find_unused_parameters(mode == Mode::finds)
      .static_graph(mode == Mode::fixed);
}

struct Side {
  Side(const Group& group, const Options& options, c10::Device device)
      : other(leaf({3}, device)),
        weight(leaf({3}, device)),
        reducer({{"other", other}, {"weight", weight}}, group, options) {}

  void pass(double slope) const {
    Maybe::apply(other * 3, weight, slope).sum().backward();
  }

  Tensor other, weight;
  Reducer reducer;
};

bool gives(Gives who, int rank) {
  return who == Gives::all || (who == Gives::one && rank == 1);
}

double earlier_gradient(Earlier earlier, int rank) {
  return earlier == Earlier::of_a_local_pass ? 6
         : earlier == Earlier::set           ? 3 * rank + 9
                                             : 0;
}

/// The weight's gradient after a pass of three ranks; std::nullopt: undefined.
std::optional<double> expected(Mode mode,
                               Gives who,
                               Gives first,
                               Earlier earlier) {
  double sum = 0;
  bool is_used =
      mode == Mode::refuses || (mode == Mode::fixed && first != Gives::none);
  for (int rank = 0; rank < 3; ++rank) {
    const double gradient =
        earlier_gradient(earlier, rank) + (gives(who, rank) ? 3 : 0);
    sum += gradient;
    is_used = is_used || gradient != 0;
  }
  return is_used ? std::optional(sum / 3) : std::nullopt;
}

TEST_CASE("undefined gradients count as none, or as zeros", "[undefined]") {
  const auto mode = GENERATE(Mode::refuses, Mode::finds, Mode::fixed);
  const bool as_view = GENERATE(false, true);
  const auto& transport = any_transport();
  transport.run_ranks(3, [&](const Group& group, c10::Device device) {
    const int rank = group->getRank();
    const auto try_one = [&](Gives first, Gives later, Earlier earlier) {
      const Side side(group,
                      options_for(mode, group).gradient_as_bucket_view(as_view),
                      device);
      const auto slope = [&](Gives who) { return gives(who, rank) ? 3 : 0; };
      for (int pass = 0; pass < 3; ++pass) {
        side.other.mutable_grad() = Tensor();
        side.weight.mutable_grad() = Tensor();
        const double before = earlier_gradient(earlier, rank);
        if (earlier == Earlier::set) {
          side.weight.mutable_grad() = torch::full({3}, before, device);
        } else if (earlier != Earlier::none) {
          const NoSyncGuard no_sync(side.reducer);
          side.pass(before);
        }
        const auto who = pass == 0 ? first : later;
        side.pass(slope(who));
        const auto wanted = expected(mode, who, first, earlier);
        const auto& grad = side.weight.grad();
        TORCH_CHECK(wanted ? test::all_equal(grad, *wanted) : !grad.defined(),
                    "Expected ",
                    wanted.value_or(-1),
                    " in pass ",
                    pass,
                    ", first ",
                    static_cast<int>(first),
                    ", later ",
                    static_cast<int>(later),
                    ", earlier ",
                    static_cast<int>(earlier),
                    ", but got ",
                    grad);
        const bool is_twice = earlier == Earlier::of_a_local_pass ||
                              earlier == Earlier::undefined_in_a_local_pass;
        TORCH_CHECK(test::all_equal(side.other.grad(), is_twice ? 6 : 3));
      }
    };
    for (const auto earlier : {Earlier::none,
                               Earlier::of_a_local_pass,
                               Earlier::undefined_in_a_local_pass,
                               Earlier::set}) {
      for (const auto later : {Gives::none, Gives::one, Gives::all}) {
        try_one(later, later, earlier);
      }
      try_one(Gives::one, Gives::none, earlier);
      if (mode != Mode::fixed) {
        try_one(Gives::none, Gives::one, earlier);
      }
    }
  });
}

TEST_CASE("weight decay does not move parameters without a gradient",
          "[undefined]") {
  const auto mode = GENERATE(Mode::finds, Mode::fixed);
  const auto& transport = any_transport();
  transport.run_ranks(2, [&](const Group& group, c10::Device device) {
    const Side side(group, options_for(mode, group), device);
    torch::optim::SGD optimizer({side.other, side.weight},
                                torch::optim::SGDOptions(0.5).weight_decay(1));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      side.pass(0);
      optimizer.step();
    }
    TORCH_CHECK(test::all_equal(side.weight, 1), side.weight);
  });
}

// The weight's gradient comes twice: in a nested pass, and undefined.
TEST_CASE("an undefined gradient beside one that comes", "[undefined]") {
  const auto& transport = any_transport();
  const bool is_last = GENERATE(false, true);
  transport.run_ranks(2, [&](const Group& group, c10::Device device) {
    auto other = leaf({3}, device), weight = leaf({3}, device);
    Reducer reducer({{"other", other}, {"weight", weight}},
                    group,
                    options_for(Mode::fixed, group));
    for (int pass = 1; pass <= 3; ++pass) {
      other.mutable_grad() = Tensor();
      weight.mutable_grad() = Tensor();
      const double slope = 2.0 * pass * group->getRank();
      auto x = other * slope;
      // A backward pass visits the last function first.
      x = is_last ? test::nested(Maybe::apply(x, weight, 0), weight)
                  : Maybe::apply(test::nested(x, weight), weight, 0);
      x.sum().backward();
      TORCH_CHECK(test::all_equal(weight.grad(), pass), weight.grad());
      TORCH_CHECK(test::all_equal(other.grad(), pass), other.grad());
    }
  });
}

TEST_CASE("a pass with undefined gradients only", "[undefined]") {
  const auto mode = GENERATE(Mode::refuses, Mode::finds, Mode::fixed);
  const auto& transport = any_transport();
  transport.run_ranks(2, [&](const Group& group, c10::Device device) {
    auto weight = leaf({3}, device);
    auto x = leaf({3}, device);
    Reducer reducer({{"weight", weight}}, group, options_for(mode, group));
    for (int pass = 0; pass < 3; ++pass) {
      weight.mutable_grad() = Tensor();
      // With the first, rank 1 has a gradient in the last pass.
      const bool comes = mode == Mode::finds && pass == 2;
      const double slope = comes && group->getRank() == 1 ? 4 : 0;
      Maybe::apply(x, weight, slope).sum().backward();
      const auto& grad = weight.grad();
      TORCH_CHECK(comes || mode == Mode::refuses
                      ? test::all_equal(grad, comes ? 2 : 0)
                      : !grad.defined(),
                  grad);
    }
  });
}

TEST_CASE("a gradient that no rank had in the first pass of a static graph",
          "[undefined][errors]") {
  const auto& transport = any_transport();
  if (!transport.has_ranks(2)) {
    return;
  }
  const bool is_late = GENERATE(false, true);  // rank 1 begins in pass 1
  const auto errors =
      transport.try_ranks(2, [&](const Group& group, c10::Device device) {
        Side side(group, options_for(Mode::fixed, group), device);
        for (int pass = 0; pass < 2; ++pass) {
          if (is_late && pass == 0 && group->getRank() == 1) {
            side.reducer.shadow_pass(2);
            continue;
          }
          side.pass(pass == 1 && group->getRank() == 1 ? 3 : 0);
        }
      });
  CHECK_THAT(errors[1],
             Contains("Expected no gradient for parameter weight, which no "
                      "rank used in the first backward pass"));
}

}  // namespace undefined_gradients_test
}  // namespace ddp
