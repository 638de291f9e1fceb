#include "test/ddp/random_programs/plain_ranks.h"

#include <algorithm>

#include <torch/utils.h>

namespace ddp::test {
namespace {

using torch::Tensor;

Tensor dense(const Tensor& grad) {
  return grad.to_dense().to(torch::kDouble);
}

/// Rows have sparse ones.
Tensor gradient_of(const Tensor& parameter, const Tensor& values) {
  const auto grad = values.to(parameter.dtype());
  return parameter.dim() == 2 ? grad.to_sparse(1) : grad;
}

/// What a rank without weights has: its share in the mean or sum.
double weight_of(const Program& program, const Act& act, int rank) {
  return program.combine == Combine::weights && act.kind != Act::Kind::join
             ? act.weights[rank]
             : 1;
}

}  // namespace

PlainRanks::PlainRanks(const Program& program)
    : program_(program), arrived_(program.size), accumulated_(program.size) {
  for (int rank = 0; rank < program.size; ++rank) {
    ranks_.push_back(std::make_unique<Learner>(program, rank));
  }
  for (const auto& parameter : ranks_[0]->parameters) {
    for (const auto& item : ranks_[0]->net->named_parameters()) {
      if (item.value().is_same(parameter)) {
        names_.push_back(item.key());
        break;
      }
    }
  }
}

void PlainRanks::perform(size_t index) {
  const Act& act = program_.acts[index];
  switch (act.kind) {
    case Act::Kind::wrap:
      return wrap(act);
    case Act::Kind::regroup:
      return bring_together();
    case Act::Kind::train:
      return train(index);
    case Act::Kind::gather:
      return gather(index);
    case Act::Kind::evaluate:
      return evaluate(index);
    case Act::Kind::step:
      return step(act);
    case Act::Kind::freeze:
      return freeze(act);
    case Act::Kind::join:
      return join(index);
    case Act::Kind::miss:
    case Act::Kind::fail:
      for (int rank = 0; rank < program_.size; ++rank) {
        backward(rank, forward(index, rank, 1));
      }
      if (program_.broadcasts) {
        copy_buffers(0);
      }
      return clear();
  }
}

void PlainRanks::wrap(const Act& act) {
  syncs_ = act.syncs;
  for (auto& accumulated : accumulated_) {
    accumulated.clear();
  }
  shared_.clear();
  for (size_t i = 0; i < names_.size(); ++i) {
    if (ranks_[0]->parameters[i].requires_grad() &&
        !is_ignored(program_, names_[i])) {
      shared_.insert(i);
    }
  }
  bring_together();
}

void PlainRanks::bring_together() {
  if (syncs_) {
    copy_parameters(0);
    copy_buffers(0);
  }
}

PlainRanks::Tensors PlainRanks::forward(size_t act,
                                        int rank,
                                        int forwards,
                                        int first) {
  Tensors losses;
  for (int i = first; i < first + forwards; ++i) {
    losses.push_back(
        ranks_[rank]->net->forward(inputs_of(program_, act, i, rank)));
  }
  return losses;
}

/// Of the sum of losses; notes what got a gradient.
void PlainRanks::backward(int rank, const Tensors& losses) {
  Learner& learner = *ranks_[rank];
  Tensors before;
  for (auto& parameter : learner.parameters) {
    before.push_back(parameter.grad());
    parameter.mutable_grad() = Tensor();
  }
  Tensor loss = losses[0];
  for (size_t i = 1; i < losses.size(); ++i) {
    loss = loss + losses[i];
  }
  loss.backward();
  arrived_[rank].clear();
  for (size_t i = 0; i < before.size(); ++i) {
    Tensor& grad = learner.parameters[i].mutable_grad();
    if (grad.defined()) {
      arrived_[rank].insert(i);
      grad = before[i].defined() ? before[i] + grad : grad;
    } else {
      grad = before[i];
    }
  }
}

void PlainRanks::reduce(size_t act, const Pass& live, double divisor) {
  if (program_.size == 1) {
    return;
  }
  const auto count = static_cast<int>(live.size());
  for (int rank = 0; rank < count; ++rank) {
    if (!live[rank]) {
      arrived_[rank].clear();
      for (const size_t i : shared_) {
        ranks_[rank]->parameters[i].mutable_grad() = Tensor();
      }
    }
  }
  for (const size_t i : shared_) {
    if (ranks_[0]->parameters[i].requires_grad()) {
      reduce(act, live, divisor, i);
    }
  }
  for (auto& accumulated : accumulated_) {
    accumulated.clear();
  }
  if (program_.combine == Combine::in_backward) {
    step_in_backward();
  }
}

void PlainRanks::reduce(size_t act,
                        const Pass& live,
                        double divisor,
                        size_t index) {
  auto sum = torch::zeros_like(ranks_[0]->parameters[index], torch::kDouble);
  bool is_used = false;
  double weights = 0;
  for (int rank = 0; rank < program_.size; ++rank) {
    const Tensor& grad = ranks_[rank]->parameters[index].grad();
    const double weight =
        live[rank] ? weight_of(program_, program_.acts[act], rank) : 0;
    weights += weight;
    is_used = is_used || arrived_[rank].count(index) > 0 ||
              (grad.defined() && accumulated_[rank].count(index) > 0);
    if (grad.defined()) {
      sum += dense(grad) * weight;
    }
  }
  if (program_.unused != Unused::fixed || is_in_graph(index)) {
    stepped_[index] = sum / divisor;
  }
  // A static graph's passes are alike, but that a rank may have no inputs.
  if (!is_used && !is_in_graph(index)) {
    return;
  }
  if (program_.combine == Combine::weights) {
    divisor = weights;
  } else if (program_.combine == Combine::sum) {
    divisor = 1;
  } else if (program_.combine == Combine::hook) {
    divisor = program_.size;
  }
  for (int rank = 0; rank < program_.size; ++rank) {
    Tensor& parameter = ranks_[rank]->parameters[index];
    if (program_.combine != Combine::none) {
      parameter.mutable_grad() = gradient_of(parameter, sum / divisor);
    } else if (!parameter.grad().defined()) {
      parameter.mutable_grad() =
          gradient_of(parameter, torch::zeros_like(parameter));
    }
  }
}

/// In a static graph, which every pass has.
bool PlainRanks::is_in_graph(size_t parameter) const {
  const auto part = static_cast<size_t>(std::stoi(names_[parameter].substr(1)));
  for (int rank = 0; rank < program_.size; ++rank) {
    if (program_.unused == Unused::fixed &&
        inputs_of(program_, 0, 0, rank)[part].defined()) {
      return true;
    }
  }
  return false;
}

/// Also with what the pass has left as it was.
void PlainRanks::step_in_backward() {
  for (auto& learner : ranks_) {
    std::vector<Tensor> kept;
    for (size_t i = 0; i < names_.size(); ++i) {
      Tensor& parameter = learner->parameters[i];
      const auto mean = stepped_.find(i);
      kept.push_back(parameter.grad());
      parameter.mutable_grad() = mean == stepped_.end()
                                     ? Tensor()
                                     : gradient_of(parameter, mean->second);
    }
    learner->optimizer->step();
    for (size_t i = 0; i < names_.size(); ++i) {
      learner->parameters[i].mutable_grad() = kept[i];
    }
  }
  stepped_.clear();
}

void PlainRanks::copy_parameters(int source) {
  const torch::NoGradGuard no_grad;
  for (auto& learner : ranks_) {
    for (size_t i = 0; i < names_.size(); ++i) {
      if (!is_ignored(program_, names_[i])) {
        learner->parameters[i].copy_(ranks_[source]->parameters[i].detach());
      }
    }
  }
}

void PlainRanks::copy_buffers(int source) {
  for (auto& learner : ranks_) {
    for (auto& item : learner->net->named_buffers()) {
      if (!is_ignored(program_, item.key())) {
        item.value().copy_(ranks_[source]->net->named_buffers()[item.key()]);
      }
    }
  }
}

void PlainRanks::train(size_t index) {
  const Act& act = program_.acts[index];
  if (act.hiccup == Act::Hiccup::in_backward) {
    forward(index, act.who, 1, act.forwards);
  }
  std::vector<Tensors> losses;
  for (int rank = 0; rank < program_.size; ++rank) {
    losses.push_back(forward(index, rank, act.forwards));
  }
  for (int i = 0; i < (act.is_apart() ? act.forwards : 1); ++i) {
    for (int rank = 0; rank < program_.size; ++rank) {
      backward(rank, act.is_apart() ? Tensors{losses[rank][i]} : losses[rank]);
    }
    reduce(index, Pass(program_.size, true), program_.size);
  }
  if (program_.size > 1 && program_.broadcasts) {
    copy_buffers(0);
  }
}

void PlainRanks::gather(size_t index) {
  const Act& act = program_.acts[index];
  for (int rank = 0; rank < program_.size; ++rank) {
    for (int i = 0; i < act.counts[rank]; ++i) {
      backward(rank, forward(index, rank, 1, i));
      accumulated_[rank].insert(arrived_[rank].begin(), arrived_[rank].end());
    }
  }
}

void PlainRanks::evaluate(size_t index) {
  const Act& act = program_.acts[index];
  const torch::NoGradGuard no_grad;
  for (int rank = 0; rank < program_.size; ++rank) {
    if (act.counts[rank] > 0 && act.in_training()) {
      ranks_[rank]->net->forward(inputs_of(program_, index, 0, rank));
    }
  }
}

void PlainRanks::step(const Act& act) {
  for (auto& learner : ranks_) {
    if (program_.steps_after_backward()) {
      learner->step(act.clip);
    }
    learner->zero(act.zero);
  }
}

void PlainRanks::freeze(const Act& act) {
  for (auto& learner : ranks_) {
    learner->freeze_or_thaw(act.part);
  }
}

void PlainRanks::join(size_t index) {
  const Act& act = program_.acts[index];
  const bool steps = program_.steps_after_backward();
  int source = program_.size - 1;
  const int turns = *std::max_element(act.counts.begin(), act.counts.end());
  for (int turn = 0; turn < turns; ++turn) {
    Pass live(program_.size);
    for (int rank = 0; rank < program_.size; ++rank) {
      live[rank] = turn < act.counts[rank];
      if (live[rank]) {
        source = rank;
        if (turn % act.forwards == 0) {
          ranks_[rank]->zero(act.zero);
        }
        backward(rank, forward(index, rank, 1, turn));
      }
    }
    const auto count = std::count(live.begin(), live.end(), true);
    reduce(index, live, act.by_live() ? count : program_.size);
    if (program_.broadcasts) {
      copy_buffers(source);
    }
    const bool is_last = (turn + 1) % act.forwards == 0;
    for (int rank = 0; rank < program_.size; ++rank) {
      if (steps && is_last && (live[rank] || act.steps_joined())) {
        ranks_[rank]->step(0);
      }
    }
  }
  copy_parameters(source);
  copy_buffers(source);
}

void PlainRanks::clear() {
  for (auto& accumulated : accumulated_) {
    accumulated.clear();
  }
  for (auto& learner : ranks_) {
    learner->zero(Zero::to_none);
  }
}

}  // namespace ddp::test
