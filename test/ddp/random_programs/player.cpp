#include "test/ddp/random_programs/player.h"

#include <algorithm>
#include <future>
#include <numeric>
#include <optional>

#include <torch/autograd.h>
#include <torch/utils.h>

#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/join.h"
#include "ddp/optim/zero_redundancy_optimizer.h"

namespace ddp::test {
namespace {

using torch::Tensor;

GradScalerOptions scaler_options(const Program& program, const Group& group) {
  return GradScalerOptions()
      .init_scale(kFirstScale)
      .growth_interval(kGoodSteps)
      .process_group(program.result() == ExchangeWay::Result::own ||
                             program.shards_model
                         ? group
                         : nullptr);
}

}  // namespace

Player::Player(const Program& program, const Group& group)
    : program_(program),
      group_(group),
      rank_(group->getRank()),
      learner_(program, rank_, group) {
  if (program.scales) {
    scaler_ = std::make_unique<GradScaler>(scaler_options(program, group));
  }
}

void Player::perform(size_t index) {
  index_ = index;
  learner_.notes.clear();
  const Act& act = program_.acts[index];
  switch (act.kind) {
    case Act::Kind::wrap:
      return wrap(act);
    case Act::Kind::regroup:
      return model().update_process_group(group_, new_exchange());
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
    case Act::Kind::load:
      return load(act);
    case Act::Kind::replace:
      return replace(act);
    case Act::Kind::convert:
      return convert();
    case Act::Kind::preset:
      return learner_.preset(index);
    case Act::Kind::join:
      return join(act);
    case Act::Kind::outrun:
    case Act::Kind::leave:
      return join_in_part(act);
    case Act::Kind::miss:
      return miss(act);
    case Act::Kind::fail:
      return fail(act);
    case Act::Kind::pair:  // runs on two players
      break;
  }
}

std::shared_ptr<Exchange> Player::new_exchange() {
  return wrapper().exchange =
             program_.way == nullptr ? nullptr : program_.way->make(group_);
}

template <class Model>
void Player::set_model(Model model) {
  wrapper().model = model.ptr();
  wrapper().forward = [model](const std::vector<Tensor>& inputs) mutable {
    return model->forward(inputs);
  };
}

void Player::wrap(const Act& act) {
  wrapper() = Wrapper();
  wrapper().keeps_memory = act.keeps_memory;
  const bool broadcasts = program_.buffers != Buffers::own;
  const auto hook = program_.buffers == Buffers::averaged
                        ? BufferHook(average_buffers)
                        : nullptr;
  const bool finds_unused = program_.unused == Unused::found;
  if (program_.shards_model) {
    const FullyShardedDataParallel<RandomNetImpl> model(
        learner_.net,
        FullyShardedDataParallelOptions()
            .process_group(group_)
            .unit_cap_mb(act.bucket_cap_mb)
            .broadcast_buffers(broadcasts)
            .buffer_hook(hook)
            .find_unused_parameters(finds_unused));
    learner_.train_leaves(model->parameters());
    return set_model(model);
  }
  set_model(DistributedDataParallel<RandomNetImpl>(
      learner_.net,
      DistributedDataParallelOptions()
          .process_group(group_)
          .bucket_cap_mb(act.bucket_cap_mb)
          .first_bucket_cap_mb(act.first_cap_mb)
          .gradient_as_bucket_view(act.keeps_memory)
          .init_sync(act.syncs)
          .broadcast_buffers(broadcasts)
          .buffer_hook(hook)
          .find_unused_parameters(finds_unused)
          .static_graph(program_.unused == Unused::fixed)
          .params_and_buffers_to_ignore(ignored_names(program_))
          .mixed_precision(program_.precision)
          .exchange(new_exchange())));
}

NamedValues Player::values(size_t act) const {
  const auto compared = program_.compared(act);
  const auto* sharded = dynamic_cast<const FullyShardedDataParallelBase*>(
      wrappers_[program_.acts[act].wrapper].model.get());
  std::optional<WholeParameters> whole;
  if (sharded != nullptr && compared.parameters) {
    whole.emplace(*sharded);
  }
  return values_of(learner_, compared);
}

std::vector<Tensor> Player::inputs(int forward) const {
  return inputs_of(program_, index_, forward, rank_);
}

Tensor Player::forward(int index) {
  auto loss = wrapper().forward(inputs(index));
  learner_.note("loss", loss);
  return loss;
}

Tensor Player::scaled(const Tensor& loss) {
  return scaler_ ? scaler_->scale(loss) : loss;
}

void Player::train(const Act& act) {
  const auto run = [&act](const std::function<void()>& half) {
    act.in_threads ? std::async(std::launch::async, half).get() : half();
  };
  run([this] { begin_train(index_); });
  run([this] { end_train(); });
}

void Player::begin_train(size_t index) {
  index_ = index;
  learner_.notes.clear();
  const Act& act = program_.acts[index];
  if (rank_ == act.rank) {
    inject_failure(act);
  }
  losses_.clear();
  for (int i = 0; i < act.forwards; ++i) {
    losses_.push_back(scaled(forward(i)));
  }
  if (rank_ == act.rank && act.local_failure == Act::LocalFailure::inspection) {
    torch::autograd::grad({losses_[0]},
                          {learner_.parameters[0]},
                          /*grad_outputs=*/{},
                          /*retain_graph=*/true);
  }
}

void Player::end_train() {
  const Act& act = program_.acts[index_];
  if (!act.is_apart()) {
    losses_ = {std::accumulate(losses_.begin() + 1, losses_.end(), losses_[0])};
  }
  for (auto& loss : losses_) {
    for (int repeat = 1; repeat <= act.repeats; ++repeat) {
      loss.backward({}, /*retain_graph=*/repeat < act.repeats);
    }
  }
  losses_.clear();
}

void Player::gather(const Act& act) {
  // The wrapper of the last forward owns the parameters.
  std::deque<NoSyncGuard> no_sync;
  for (auto& each : wrappers_) {
    if (each.model) {
      no_sync.emplace_back(*each.model);
    }
  }
  for (int i = 0; i < act.counts[rank_]; ++i) {
    scaled(act.by_module() ? learner_.net->forward(inputs(i)) : forward(i))
        .backward();
  }
}

void Player::evaluate(const Act& act) {
  if (act.counts[rank_] > 0) {
    const torch::NoGradGuard no_grad;
    model().train(act.in_training());
    forward(0);
    model().train();
  }
}

void Player::make_step(double clip) {
  auto& optimizer = *learner_.optimizer;
  if (!scaler_) {
    learner_.clip(clip);
    optimizer.step();
    return;
  }
  if (clip > 0) {
    scaler_->unscale_(optimizer);
    learner_.clip(clip);
  }
  scaler_->step(optimizer);
  scaler_->update();
  learner_.note("scale", torch::tensor(scaler_->get_scale()));
}

void Player::step(const Act& act) {
  make_step(act.clip);
  check_held();
  held_.clear();
  const bool has_views =
      std::any_of(wrappers_.begin(), wrappers_.end(), [](const Wrapper& each) {
        return each.keeps_memory;
      });
  if (act.holds() && act.zero == Zero::to_none && !has_views) {
    hold();
  }
  learner_.zero(act.zero);
}

void Player::hold() {
  for (const auto& parameter : learner_.parameters) {
    const auto& grad = parameter.grad();
    if (grad.defined() && !grad.is_sparse() && !program_.shards_model) {
      held_.emplace_back(grad, grad.clone());
    }
  }
}

void Player::check_held() const {
  for (const auto& [grad, values] : held_) {
    TORCH_CHECK(is_same(grad, values),
                "Expected a held gradient to stay\n",
                values,
                "\nbut got\n",
                grad);
  }
}

std::vector<std::reference_wrapper<Joinable>> Player::joinables() {
  std::vector<std::reference_wrapper<Joinable>> all{model()};
  if (auto* sharded =
          dynamic_cast<ZeroRedundancyOptimizer*>(learner_.optimizer.get())) {
    all.emplace_back(*sharded);
  }
  return all;
}

void Player::join(const Act& act) {
  Join all(joinables(),
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
    scaled(forward(turn)).backward();
    end_turn();
  }
  // The Join itself steps a sharded optimizer.
  all.finish(act.steps_joined() && !program_.shards_optimizer()
                 ? end_turn
                 : std::function<void()>());
}

}  // namespace ddp::test
