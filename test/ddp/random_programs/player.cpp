#include "test/ddp/random_programs/player.h"

#include <numeric>
#include <stdexcept>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include "ddp/detail/job_files/error_text.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/check_finite.h"
#include "ddp/exchanges/hook_exchange.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/join.h"

namespace ddp::test {
namespace {

using torch::Tensor;

constexpr const char* kSpoiled = "spoiled by the test";

struct Spoiled : std::runtime_error {
  Spoiled() : std::runtime_error(kSpoiled) {}
};

/// Throws when a parameter's gradient has come.
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

}  // namespace

void Player::perform(size_t index) {
  index_ = index;
  const Act& act = program_.acts[index];
  switch (act.kind) {
    case Act::Kind::wrap:
      return wrap(act);
    case Act::Kind::regroup:
      return model_->update_process_group(group_, make_exchange());
    case Act::Kind::train:
      return train(act);
    case Act::Kind::gather:
      return gather(act);
    case Act::Kind::evaluate:
      return evaluate(act);
    case Act::Kind::step:
      return step(act);
    case Act::Kind::freeze:
      return learner_.freeze_or_thaw(act.part);
    case Act::Kind::join:
      return join(act);
    case Act::Kind::miss:
      return miss(act);
    case Act::Kind::fail:
      return fail(act);
  }
}

std::shared_ptr<Exchange> Player::make_exchange() {
  weights_ = nullptr;
  stepper_ = nullptr;
  switch (program_.combine) {
    case Combine::mean:
      return nullptr;
    case Combine::sum:
      return std::make_shared<AllReduce>(group_,
                                         AllReduceOptions().mean(false));
    case Combine::predivided:
      return std::make_shared<AllReduce>(group_,
                                         AllReduceOptions().predivide(2));
    case Combine::checked:
      return std::make_shared<CheckFinite>(group_);
    case Combine::hook:
      return std::make_shared<HookExchange>([group = group_](auto& bucket) {
        bucket.payload.div_(group->getSize());
        std::vector<Tensor> tensors{bucket.payload};
        return group->allreduce(tensors);
      });
    case Combine::narrow:
      return std::make_shared<CastExchange>(group_, torch::kBFloat16);
    case Combine::weights:
      return weights_ = std::make_shared<WeightedMean>(group_);
    case Combine::none:
      return std::make_shared<NoExchange>();
    case Combine::in_backward:
      return stepper_ =
                 std::make_shared<StepInBackward>(*learner_.optimizer, group_);
  }
  return nullptr;
}

void Player::wrap(const Act& act) {
  model_ = nullptr;
  keeps_memory_ = act.keeps_memory;
  model_ = DistributedDataParallel<RandomNetImpl>(
      learner_.net,
      DistributedDataParallelOptions()
          .process_group(group_)
          .bucket_cap_mb(act.bucket_cap_mb)
          .gradient_as_bucket_view(act.keeps_memory)
          .init_sync(act.syncs)
          .broadcast_buffers(program_.broadcasts)
          .find_unused_parameters(program_.unused == Unused::found)
          .find_unused_on_demand(program_.unused == Unused::on_demand)
          .static_graph(program_.unused == Unused::fixed)
          .params_and_buffers_to_ignore(ignored_names(program_))
          .exchange(make_exchange()));
}

std::vector<Tensor> Player::inputs(int forward) const {
  return inputs_of(program_, index_, forward, rank_);
}

/// An exception that comes before anything is averaged is this rank's own.
void Player::stumble(const Act& act) {
  if (act.hiccup == Act::Hiccup::in_forward) {
    expect_error(kSpoiled, [&] {
      model_->call([](auto& /*net*/) -> Tensor { throw Spoiled(); });
    });
  } else if (act.hiccup == Act::Hiccup::in_backward) {
    const auto loss = model_->forward(inputs(act.forwards));
    loss.register_hook([](const Tensor&) -> Tensor { throw Spoiled(); });
    expect_error(kSpoiled, [&] { loss.backward(); });
  }
}

void Player::weigh(double weight) {
  if (weights_) {
    weights_->set_weight(weight);
  }
}

void Player::train(const Act& act) {
  if (rank_ == act.who) {
    stumble(act);
  }
  weigh(act.weights[rank_]);
  std::vector<Tensor> losses;
  for (int i = 0; i < act.forwards; ++i) {
    losses.push_back(model_->forward(inputs(i)));
  }
  if (!act.is_apart()) {
    losses = {std::accumulate(losses.begin() + 1, losses.end(), losses[0])};
  }
  for (auto& loss : losses) {
    loss.backward();
  }
}

void Player::gather(const Act& act) {
  for (int i = 0; i < act.counts[rank_]; ++i) {
    if (act.by_module()) {
      learner_.net->forward(inputs(i)).backward();
    } else {
      const NoSyncGuard no_sync(*model_);
      model_->forward(inputs(i)).backward();
    }
  }
}

void Player::evaluate(const Act& act) {
  if (act.counts[rank_] > 0) {
    const torch::NoGradGuard no_grad;
    model_->train(act.in_training());
    model_->forward(inputs(0));
    model_->train();
  }
}

void Player::make_step(double clip) {
  if (program_.steps_after_backward()) {
    learner_.step(clip);
  }
}

void Player::check_held() const {
  for (const auto& [grad, values] : held_) {
    TORCH_CHECK(torch::equal(grad, values),
                "Expected a held gradient to stay\n",
                values,
                "\nbut got\n",
                grad);
  }
}

void Player::step(const Act& act) {
  make_step(act.clip);
  check_held();
  held_.clear();
  for (const auto& parameter : learner_.parameters) {
    const auto& grad = parameter.grad();
    if (act.holds() && act.zero == Zero::to_none && !keeps_memory_ &&
        grad.defined() && !grad.is_sparse()) {
      held_.emplace_back(grad, grad.clone());
    }
  }
  learner_.zero(act.zero);
}

void Player::join(const Act& act) {
  weigh(1);
  Join all({*model_},
           JoinOptions().divide_by_initial_world_size(!act.by_live()));
  int turn = 0;
  const auto end_turn = [&] {
    if (++turn % act.forwards == 0) {
      make_step(0);
    }
  };
  while (turn < act.counts[rank_]) {
    if (turn % act.forwards == 0) {
      learner_.zero(act.zero);
    }
    model_->forward(inputs(turn)).backward();
    end_turn();
  }
  weigh(0);
  all.finish(act.steps_joined() ? end_turn : std::function<void()>());
}

void Player::miss(const Act& act) {
  const auto loss = model_->forward(inputs(0));
  expect_error("got none: on rank " + std::to_string(act.who) + ": p" +
                   std::to_string(act.part),
               [&] { loss.backward(); });
  learner_.zero(Zero::to_none);
}

void Player::fail(const Act& act) {
  const auto loss = model_->forward(inputs(0));
  const auto error =
      "on rank " + std::to_string(act.who) + ": backward() threw it";
  if (rank_ == act.who) {
    const auto node =
        torch::autograd::impl::grad_accumulator(learner_.parameters[0]);
    const auto key = node->add_post_hook(std::make_unique<ThrowingHook>());
    expect_error(kSpoiled, [&] { loss.backward(); });
    node->del_post_hook(key);
    expect_error(error, [&] { model_->forward(inputs(0)); });
  } else {
    try {
      loss.backward();  // where it has ended already, the next one tells
    } catch (const c10::Error&) {
    }
  }
  model_->eval();
  expect_error(error, [&] { model_->forward(inputs(0)).backward(); });
  model_->train();
  learner_.zero(Zero::to_none);
}

}  // namespace ddp::test
