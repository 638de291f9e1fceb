#include "test/ddp/random_programs/plain_reduction.h"

#include <algorithm>
#include <optional>

#include <torch/utils.h>

namespace ddp::test {
namespace {

using Result = ExchangeWay::Result;
using torch::Tensor;

/// Returns the relative rounding error of the coarsest dtype in which gradients
/// are computed or sent.
double rounding_error(const Program& program) {
  double error = 1e-5;  // of some operations on floats
  const auto add = [&error](std::optional<torch::Dtype> dtype) {
    if (dtype && c10::elementSize(*dtype) == 2) {
      error = 1.0 / 128;  // of bfloat16
    }
  };
  for (const Part& part : program.parts) {
    add(part.dtype);
  }
  add(program.precision.reduce_dtype());
  return error;
}

}  // namespace

PlainReduction::PlainReduction(const Program& program, const Learners& ranks)
    : program_(program),
      ranks_(ranks),
      arrived_(program.size),
      accumulated_(program.size) {
  for (const auto& parameter : ranks_[0]->parameters) {
    for (const auto& item : ranks_[0]->net->named_parameters()) {
      if (item.value().is_same(parameter)) {
        names_.push_back(item.key());
        break;
      }
    }
  }
}

void PlainReduction::wrap() {
  forget_pass();
  shared_.clear();
  for (size_t i = 0; i < names_.size(); ++i) {
    if (ranks_[0]->parameters[i].requires_grad() &&
        !is_ignored(program_, names_[i])) {
      shared_.insert(i);
    }
  }
}

void PlainReduction::backward(int rank, const Tensor& loss, bool keeps_graph) {
  Learner& learner = *ranks_[rank];
  std::vector<Tensor> before;
  for (auto& parameter : learner.parameters) {
    before.push_back(parameter.grad());
    parameter.mutable_grad() = Tensor();
  }
  loss.backward({}, keeps_graph);
  arrived_[rank].clear();
  for (size_t i = 0; i < before.size(); ++i) {
    Tensor& grad = learner.parameters[i].mutable_grad();
    if (grad.defined()) {
      arrived_[rank].insert(i);
      grad = gradient_of(i, grad.to_dense());
      grad = before[i].defined() ? before[i] + grad : grad;
    } else {
      grad = before[i];
      if (grad.defined() && is_silent(i)) {
        arrived_[rank].insert(i);  // the hook finds the preset gradient
      }
    }
  }
}

void PlainReduction::keep(int rank) {
  accumulated_[rank].insert(arrived_[rank].begin(), arrived_[rank].end());
}

void PlainReduction::forget_pass() {
  for (auto& accumulated : accumulated_) {
    accumulated.clear();
  }
}

void PlainReduction::reduce(const Pass& live, double divisor) {
  if (!program_.exchanges()) {
    return;
  }
  let_go(live);
  const double error = coding_error(divisor);
  for (const auto& learner : ranks_) {
    learner->coding_error += error + last_error_;
  }
  last_error_ =
      program_.is_lossy() && program_.way->adds_last_error ? error : 0;
  for (const size_t i : shared_) {
    if (ranks_[0]->parameters[i].requires_grad()) {
      reduce_one(divisor, i);
    }
  }
  forget_pass();
}

/// Drops the gradients of ranks without inputs.
void PlainReduction::let_go(const Pass& live) {
  for (int rank = 0; rank < program_.size; ++rank) {
    if (!live[rank]) {
      arrived_[rank].clear();
      for (const size_t i : shared_) {
        ranks_[rank]->parameters[i].mutable_grad() = Tensor();
      }
    }
  }
}

/// Returns a bound of the error that the exchange adds to each element in a
/// pass.
double PlainReduction::coding_error(double divisor) const {
  if (!program_.is_lossy()) {
    return 0;
  }
  double shares = 0;  // the sum over ranks of the largest share bounds the mean
  for (const auto& learner : ranks_) {
    double largest = 0;
    for (const size_t i : shared_) {
      const Tensor& grad = learner->parameters[i].grad();
      if (grad.defined() && grad.numel() > 0) {
        largest = std::max(largest,
                           torch::nan_to_num(grad.to_dense(), 0, 0, 0)
                               .abs()
                               .max()
                               .item<double>());
      }
    }
    shares += largest / divisor;
  }
  return shares * (program_.way->coding_error +
                   program_.way->roundings * rounding_error(program_));
}

/// Returns `values` in the parameter's dtype; sparse for an embedding.
Tensor PlainReduction::gradient_of(size_t index, const Tensor& values) const {
  const auto grad = values.to(ranks_[0]->parameters[index].dtype());
  const bool is_sparse =
      program_.parts[part_of(names_[index])].kind == Part::Kind::rows;
  return is_sparse ? grad.to_sparse(1) : grad.clone();
}

double PlainReduction::divisor(double usual) const {
  switch (program_.result()) {
    case Result::sum:
      return 1;
    case Result::mean_of_all:
      return program_.size;
    default:
      return usual;
  }
}

void PlainReduction::reduce_one(double usual, size_t index) {
  auto sum = torch::zeros_like(ranks_[0]->parameters[index], torch::kDouble);
  bool is_used = is_silent(index) && program_.unused == Unused::refused;
  for (int rank = 0; rank < program_.size; ++rank) {
    const Tensor& grad = ranks_[rank]->parameters[index].grad();
    is_used = is_used || arrived_[rank].count(index) > 0 ||
              (grad.defined() && accumulated_[rank].count(index) > 0);
    if (grad.defined()) {
      sum += grad.to_dense().to(torch::kDouble);
    }
  }
  const auto mean = sum / divisor(usual);
  // All passes of a static graph reduce the same parameters, although a rank
  // may have no inputs.
  if (!is_used && !is_in_graph(index)) {
    return;
  }
  for (const auto& learner : ranks_) {
    Tensor& grad = learner->parameters[index].mutable_grad();
    if (program_.result() != Result::own) {
      grad = gradient_of(index, mean);
    } else if (!grad.defined()) {
      grad = gradient_of(index, torch::zeros_like(mean));
    }
  }
}

bool PlainReduction::is_silent(size_t parameter) const {
  return program_.parts[part_of(names_[parameter])].kind == Part::Kind::silent;
}

/// Returns whether the parameter is in the static graph, which all passes
/// share.
bool PlainReduction::is_in_graph(size_t parameter) const {
  const auto part = part_of(names_[parameter]);
  for (int rank = 0; rank < program_.size; ++rank) {
    if (program_.unused == Unused::fixed &&
        inputs_of(program_, 0, 0, rank)[part].defined()) {
      return true;
    }
  }
  return false;
}

}  // namespace ddp::test
