// Deliberate failures.
#include <stdexcept>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/job/error_text.h"
#include "ddp/join.h"
#include "test/ddp/random_programs/player.h"

namespace ddp::test {
namespace {

using torch::Tensor;

constexpr const char* kSpoiled = "spoiled by the test";

struct Spoiled : std::runtime_error {
  Spoiled() : std::runtime_error(kSpoiled) {}
};

/// Throws after a parameter's gradient has been accumulated.
struct ThrowingHook : torch::autograd::FunctionPostHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list&,
      const torch::autograd::variable_list&) override {
    throw Spoiled();
  }
};

template <typename Work>
void expect_error(const std::string& text, const Work& work) {
  std::string got = "none";
  try {
    work();
  } catch (const std::exception& /*error*/) {
    got = detail::text_of(std::current_exception());
  }
  TORCH_CHECK(got.find(text) != std::string::npos,
              "Expected an error with \"",
              text,
              "\", but got ",
              got);
}

/// Runs work whose failure ends the program. A rank that has not caused the
/// failure learns of it when the connection to another rank closes.
/// @throws ProgramEnd if the work has failed in this way.
template <typename Work>
[[noreturn]] void expect_end(bool is_cause,
                             const std::string& text,
                             const Work& work) {
  expect_error(is_cause ? text : "failed", work);
  throw ProgramEnd();
}

}  // namespace

/// Runs a failure of this rank only, before any gradient is averaged.
void Player::inject_failure(const Act& act) {
  switch (act.hiccup) {
    case Act::LocalFailure::in_forward:
      return expect_error(kSpoiled, [&] {
        model().call([](auto& /*net*/) -> Tensor { throw Spoiled(); });
      });
    case Act::LocalFailure::in_backward: {
      const auto loss = forward(act.forwards);
      loss.register_hook([](const Tensor&) -> Tensor { throw Spoiled(); });
      return expect_error(kSpoiled, [&] { loss.backward(); });
    }
    case Act::LocalFailure::no_backward:
      forward(act.forwards);
      return;
    case Act::LocalFailure::none:
    case Act::LocalFailure::inspection:
      return;
  }
}

void Player::join_in_part(const Act& act) {
  const bool is_left = act.kind == Act::Kind::leave;
  weigh(1);
  const auto loop = [&] {
    Join all(joinables(), JoinOptions().throw_on_early_termination(!is_left));
    const int turns = is_left ? act.fewest() : act.counts[rank_];
    for (int turn = 0; turn < turns; ++turn) {
      scaled(forward(turn)).backward();
      make_step(0);
      learner_.zero(act.zero);
    }
    if (is_left) {
      throw Spoiled();
    }
    all.finish();
  };
  if (is_left) {
    expect_error(kSpoiled, loop);
  } else if (act.fewest() == act.most()) {
    loop();
  } else {
    expect_error("had none left while", loop);
  }
}

void Player::miss(const Act& act) {
  const auto loss = forward(0);
  expect_end(rank_ == act.who,
             "got none on rank " + std::to_string(act.who) + ": p" +
                 std::to_string(act.part),
             [&] { loss.backward(); });
}

void Player::spoil(const Act& act) {
  const auto loss = forward(0);
  expect_end(/*is_here=*/true,
             "Expected finite gradients, but got on rank " +
                 std::to_string(act.who) + ": p0 (inf)",
             [&] { loss.backward(); });
}

void Player::fail(const Act& act) {
  const auto loss = forward(0);
  if (rank_ != act.who) {
    expect_end(false, "", [&] {
      loss.backward();
      forward(0).backward();
    });
  }
  const auto node =
      torch::autograd::impl::grad_accumulator(learner_.parameters[0]);
  const auto key = node->add_post_hook(std::make_unique<ThrowingHook>());
  expect_error(kSpoiled, [&] { loss.backward(); });
  node->del_post_hook(key);
  expect_end(true, "an exception has left its backward pass", [&] {
    model().forward(inputs(0));
  });
}

}  // namespace ddp::test
