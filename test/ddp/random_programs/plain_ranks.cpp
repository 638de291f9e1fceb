#include "test/ddp/random_programs/plain_ranks.h"

#include <algorithm>
#include <numeric>

#include <torch/utils.h>

#include "test/ddp/random_programs/plain_copies.h"

namespace ddp::test {
namespace {

using torch::Tensor;

Learners make_learners(const Program& program) {
  Learners ranks;
  for (int rank = 0; rank < program.size; ++rank) {
    ranks.push_back(std::make_unique<Learner>(program, rank));
    ranks.back()->net->compute_plainly();
  }
  return ranks;
}

}  // namespace

PlainRanks::PlainRanks(const Program& program)
    : program_(program),
      ranks_(make_learners(program)),
      scalers_(program.size),
      reduction_(nullptr) {
  reductions_.emplace_back(program, ranks_);
  reductions_.emplace_back(program, ranks_);
}

void PlainRanks::perform(size_t index) {
  const Act& act = program_.acts[index];
  reduction_ = &reductions_[act.wrapper];
  for (auto& learner : ranks_) {
    learner->notes.clear();
  }
  switch (act.kind) {
    case Act::Kind::wrap:
      return wrap(act);
    case Act::Kind::regroup:
      return verify_and_broadcast(act.wrapper);
    case Act::Kind::train:
    case Act::Kind::pair:
      return train(index);
    case Act::Kind::gather:
      return gather(index);
    case Act::Kind::evaluate:
      return evaluate(index);
    case Act::Kind::step:
      return step(act);
    case Act::Kind::freeze:
      for (auto& learner : ranks_) {
        learner->freeze_or_thaw(act.part);
      }
      return;
    case Act::Kind::load:
      return copy_file(program_, ranks_, index);
    case Act::Kind::replace:
    case Act::Kind::convert:
      return;
    case Act::Kind::preset:
      for (auto& learner : ranks_) {
        learner->preset(index);
      }
      return;
    case Act::Kind::join:
      return join(index);
    case Act::Kind::outrun:
    case Act::Kind::leave:
      return join_in_part(index);
    case Act::Kind::miss:
    case Act::Kind::fail:
      return run_failed_pass(index);
  }
}

void PlainRanks::wrap(const Act& act) {
  syncs_[act.wrapper] = act.syncs;
  reduction_->wrap();
  const auto dtype = program_.precision.buffer_dtype();
  for (auto& learner : ranks_) {
    for (auto& item : learner->net->named_buffers()) {
      if (dtype && item.value().is_floating_point() &&
          !is_ignored(program_, item.key())) {
        item.value().set_data(item.value().to(*dtype));
      }
    }
  }
  verify_and_broadcast(act.wrapper);
}

void PlainRanks::verify_and_broadcast(int wrapper) {
  if (syncs_[wrapper]) {
    copy_parameters(program_, ranks_, 0);
    copy_buffers(program_, ranks_, 0);
  }
}

Tensor PlainRanks::forward(size_t act, int rank, int index) {
  const auto loss =
      ranks_[rank]->net->forward(inputs_of(program_, act, index, rank));
  ranks_[rank]->note("loss", loss);
  return loss;
}

Tensor PlainRanks::scaled(int rank, const Tensor& loss) const {
  return program_.scales ? loss * scalers_[rank].scale : loss;
}

void PlainRanks::inject_failure(size_t index) {
  const Act& act = program_.acts[index];
  if (act.local_failure == Act::LocalFailure::in_backward ||
      act.local_failure == Act::LocalFailure::no_backward) {
    forward(index, act.rank, act.forwards);
  }
}

void PlainRanks::train(size_t index) {
  const Act& act = program_.acts[index];
  inject_failure(index);
  std::vector<Tensors> losses(program_.size);
  for (int rank = 0; rank < program_.size; ++rank) {
    auto& own = losses[rank];
    for (int i = 0; i < act.forwards; ++i) {
      own.push_back(scaled(rank, forward(index, rank, i)));
    }
    if (!act.is_apart()) {
      own = {std::accumulate(own.begin() + 1, own.end(), own[0])};
    }
  }
  for (size_t i = 0; i < losses[0].size(); ++i) {
    for (int repeat = 1; repeat <= act.repeats; ++repeat) {
      for (int rank = 0; rank < program_.size; ++rank) {
        reduction_->backward(rank, losses[rank][i], repeat < act.repeats);
      }
      reduction_->reduce(PlainReduction::Pass(program_.size, true),
                         program_.size);
    }
  }
  share_buffers(0);
}

void PlainRanks::gather(size_t index) {
  const Act& act = program_.acts[index];
  for (int rank = 0; rank < program_.size; ++rank) {
    auto& learner = *ranks_[rank];
    for (int i = 0; i < act.counts[rank]; ++i) {
      if (act.by_module()) {
        const auto inputs = inputs_of(program_, index, i, rank);
        reduction_->backward(rank, scaled(rank, learner.net->forward(inputs)));
      } else {
        reduction_->backward(rank, scaled(rank, forward(index, rank, i)));
      }
      reduction_->keep(rank);
    }
  }
}

void PlainRanks::evaluate(size_t index) {
  const Act& act = program_.acts[index];
  const torch::NoGradGuard no_grad;
  for (int rank = 0; rank < program_.size; ++rank) {
    if (act.counts[rank] > 0) {
      ranks_[rank]->net->train(act.in_training());
      forward(index, rank, 0);
      ranks_[rank]->net->train();
    }
  }
}

/// Steps the optimizer on the selected ranks. With Result::own all ranks
/// skip the step if one of them has a gradient that is not finite.
void PlainRanks::make_step(double clip, const std::vector<bool>& selected) {
  std::vector<bool> has_found(program_.size);
  for (int rank = 0; rank < program_.size && program_.scales; ++rank) {
    has_found[rank] = selected[rank] && scalers_[rank].unscale(*ranks_[rank]);
  }
  const bool has_any =
      std::find(has_found.begin(), has_found.end(), true) != has_found.end();
  for (int rank = 0; rank < program_.size; ++rank) {
    const bool is_left_out = program_.result() == ExchangeWay::Result::own
                                 ? has_any
                                 : has_found[rank];
    if (!selected[rank]) {
      continue;
    }
    ranks_[rank]->clip(clip);
    if (!is_left_out) {
      ranks_[rank]->optimizer->step();
    }
    if (program_.scales) {
      scalers_[rank].update(is_left_out);
      ranks_[rank]->note("scale", torch::tensor(scalers_[rank].scale));
    }
  }
}

void PlainRanks::step(const Act& act) {
  make_step(act.clip, std::vector<bool>(program_.size, true));
  for (auto& learner : ranks_) {
    learner->zero(act.zero);
  }
}

void PlainRanks::join(size_t index) {
  const Act& act = program_.acts[index];
  int source = program_.size - 1;
  for (int turn = 0; turn < act.most(); ++turn) {
    PlainReduction::Pass live(program_.size);
    for (int rank = 0; rank < program_.size; ++rank) {
      live[rank] = turn < act.counts[rank];
      if (live[rank]) {
        source = rank;
        if (turn % act.forwards == 0) {
          ranks_[rank]->zero(act.zero);
        }
        reduction_->backward(rank, scaled(rank, forward(index, rank, turn)));
      }
    }
    const auto count = std::count(live.begin(), live.end(), true);
    reduction_->reduce(
        live, static_cast<double>(act.by_live() ? count : program_.size));
    share_buffers(source);
    if ((turn + 1) % act.forwards == 0) {
      make_step(
          0,
          act.steps_joined() ? std::vector<bool>(program_.size, true) : live);
    }
  }
  end_join(source);
}

void PlainRanks::end_join(int source) {
  copy_parameters(program_, ranks_, source);
  copy_buffers(program_, ranks_, source);
}

/// Trains until a rank has no inputs left. Ends the Join normally if all ranks
/// have equally many inputs and do not leave.
void PlainRanks::join_in_part(size_t index) {
  const Act& act = program_.acts[index];
  const std::vector<bool> all(program_.size, true);
  for (int turn = 0; turn < act.fewest(); ++turn) {
    for (int rank = 0; rank < program_.size; ++rank) {
      reduction_->backward(rank, scaled(rank, forward(index, rank, turn)));
    }
    reduction_->reduce(all, program_.size);
    share_buffers(act.kind == Act::Kind::leave ? program_.size - 1 : 0);
    make_step(0, all);
    for (auto& learner : ranks_) {
      learner->zero(act.zero);
    }
  }
  if (act.kind == Act::Kind::outrun && act.fewest() == act.most()) {
    end_join(program_.size - 1);
  }
}

void PlainRanks::run_failed_pass(size_t index) {
  for (int rank = 0; rank < program_.size; ++rank) {
    reduction_->backward(rank, forward(index, rank, 0));
  }
  share_buffers(0);
  reduction_->forget_pass();
  for (auto& learner : ranks_) {
    learner->zero(Zero::to_none);
  }
}

void PlainRanks::share_buffers(int source) {
  if (program_.size == 1 || program_.buffers == Buffers::own) {
    return;
  }
  if (program_.buffers == Buffers::averaged) {
    const torch::NoGradGuard no_grad;
    for (auto& item : ranks_[0]->net->named_buffers()) {
      if (item.value().is_floating_point() &&
          !is_ignored(program_, item.key())) {
        item.value().add_(ranks_[1]->net->named_buffers()[item.key()]).div_(2);
      }
    }
  }
  copy_buffers(program_, ranks_, source);
}

}  // namespace ddp::test
