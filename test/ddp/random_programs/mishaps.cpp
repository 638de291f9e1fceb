// Deliberate failures.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/collectives.h"
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
void expect_error(const std::vector<std::string>& any_of, const Work& work) {
  std::string got = "none";
  try {
    work();
  } catch (const std::exception& /*error*/) {
    got = detail::text_of(std::current_exception());
  }
  const auto is_in_it = [&got](const std::string& text) {
    return got.find(text) != std::string::npos;
  };
  TORCH_CHECK(std::any_of(any_of.begin(), any_of.end(), is_in_it),
              "Expected an error with \"",
              any_of.front(),
              "\", but got ",
              got);
}

/// Errors of a rank that learns of another rank's failure when the connection
/// closes. Gloo may then lose a send, which ends by the time-out.
const std::vector<std::string> kFailureOfAnother{
    "failed", "timed out", "Expected a work of the hook"};

}  // namespace

/// Makes this rank alone fail, before any gradient is averaged.
void Player::inject_failure(const Act& act) {
  switch (act.local_failure) {
    case Act::LocalFailure::in_forward:
      return expect_error({"Expected an input for each part"},
                          [&] { wrapper().forward({}); });
    case Act::LocalFailure::in_backward: {
      const auto loss = forward(act.forwards);
      loss.register_hook([](const Tensor&) -> Tensor { throw Spoiled(); });
      return expect_error({kSpoiled}, [&] { loss.backward(); });
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
    expect_error({kSpoiled}, loop);
  } else if (act.fewest() == act.most()) {
    loop();
  } else {
    expect_error({"had none left while"}, loop);
  }
}

/// Ends the program, as do the two functions below. The barrier waits until all
/// ranks have finished the earlier acts, in which the end would cause another
/// error.
void Player::miss(const Act& act) {
  const auto loss = forward(0);
  const std::string own = "got none on rank " + std::to_string(act.rank) +
                          ": p" + std::to_string(act.part);
  expect_error(rank_ == act.rank ? std::vector{own} : kFailureOfAnother, [&] {
    barrier(group_);
    loss.backward();
  });
  throw ProgramEnd();
}

void Player::fail(const Act& act) {
  const auto loss = forward(0);
  if (rank_ != act.rank) {
    expect_error(kFailureOfAnother, [&] {
      barrier(group_);
      loss.backward();
      forward(0).backward();
    });
    throw ProgramEnd();
  }
  barrier(group_);
  const auto node =
      torch::autograd::impl::grad_accumulator(learner_.parameters[0]);
  const auto key = node->add_post_hook(std::make_unique<ThrowingHook>());
  expect_error({kSpoiled}, [&] { loss.backward(); });
  node->del_post_hook(key);
  expect_error({"an exception has left its backward pass"},
               [&] { wrapper().forward(inputs(0)); });
  throw ProgramEnd();
}

}  // namespace ddp::test
