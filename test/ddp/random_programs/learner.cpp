#include "test/ddp/random_programs/learner.h"

#include <algorithm>
#include <sstream>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "ddp/nn/checkpoint_activations.h"
#include "ddp/optim/fused.h"

namespace ddp::test {
namespace {

using torch::Tensor;

std::string name_of(size_t part) {
  return "p" + std::to_string(part);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Stepper stepper, const std::vector<Tensor>& parameters) {
  const auto sgd = torch::optim::SGDOptions(1.0 / 16);
  const auto momentum = torch::optim::SGDOptions(1.0 / 16).momentum(0.5);
  const auto adam = torch::optim::AdamOptions(0.1);
  switch (stepper) {
    case Stepper::sgd:
      return std::make_unique<torch::optim::SGD>(parameters, sgd);
    case Stepper::momentum:
      return std::make_unique<torch::optim::SGD>(parameters, momentum);
    case Stepper::fused_momentum:
      return std::make_unique<FusedSGD>(parameters, momentum);
    case Stepper::adam:
      return std::make_unique<torch::optim::Adam>(parameters, adam);
    case Stepper::fused_adam:
      return std::make_unique<FusedAdam>(parameters, adam);
  }
  return nullptr;
}

Tensor copy_of(const Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  return tensor.defined() ? tensor.detach().to_dense().clone() : Tensor();
}

bool is_same(const Tensor& left, const Tensor& right) {
  return left.defined() == right.defined() &&
         (!left.defined() ||
          (left.dtype() == right.dtype() && torch::equal(left, right)));
}

}  // namespace

RandomNetImpl::RandomNetImpl(const Program& program, int rank)
    : parts_(program.parts),
      weights_(parts_.size()),
      factors_(parts_.size()),
      tables_(parts_.size(), nullptr) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const double value = static_cast<double>(i) + rank;
    const auto weight = torch::full({part.size}, value, part.dtype);
    if (part.kind == Part::Kind::rows) {
      tables_[i] = register_module(
          name_of(i),
          torch::nn::Embedding(torch::nn::EmbeddingOptions(3, 2)
                                   ._weight(torch::full({3, 2}, value))
                                   .sparse(true)));
      weights_[i] = tables_[i]->weight;
      continue;
    }
    weights_[i] =
        register_parameter(name_of(i), weight, part.kind != Part::Kind::frozen);
    if (part.kind == Part::Kind::tied) {
      register_parameter(name_of(i) + "_again", weights_[i]);
    } else if (part.kind == Part::Kind::product) {
      factors_[i] = register_parameter(name_of(i) + "_factor",
                                       torch::full_like(weight, value + 1));
    }
  }
  sum_ = register_buffer("sum", torch::zeros({1}, torch::kDouble) + rank);
  count_ = register_buffer("count", torch::zeros({}, torch::kLong) + rank);
  own_ = register_buffer("own", torch::zeros({2}) + rank);
}

Tensor RandomNetImpl::forward(const std::vector<Tensor>& inputs) {
  auto total = torch::zeros({}, torch::kDouble);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (inputs[i].defined()) {
      total = total + term(i, inputs[i]);
    }
  }
  if (is_training()) {
    const torch::NoGradGuard no_grad;
    sum_ += inputs[0].sum();
    count_ += 1;
    own_ += 1;
  }
  return total * 12;
}

Tensor RandomNetImpl::term(size_t part, const Tensor& input) {
  if (parts_[part].kind == Part::Kind::rows) {
    return tables_[part]->forward(input).to(torch::kDouble).sum();
  }
  const auto compute = [weight = weights_[part],
                        factor = factors_[part]](const Tensor& x) {
    const auto product = weight.to(torch::kDouble) * x;
    return (factor.defined() ? product * factor : product).sum();
  };
  return parts_[part].is_checkpointed ? checkpoint_activations(compute, input)
                                      : compute(input);
}

Learner::Learner(const Program& program, int rank) : net(program, rank) {
  for (const auto& parameter : net->parameters()) {
    if (std::none_of(
            parameters.begin(), parameters.end(), [&](const Tensor& other) {
              return other.is_same(parameter);
            })) {
      parameters.push_back(parameter);
    }
  }
  optimizer = make_optimizer(program.stepper, parameters);
}

void Learner::step(double clip) {
  if (clip > 0) {
    std::vector<Tensor> dense;
    for (const auto& parameter : parameters) {
      if (parameter.grad().defined() && !parameter.grad().is_sparse()) {
        dense.push_back(parameter);
      }
    }
    torch::nn::utils::clip_grad_norm_(dense, clip);
  }
  optimizer->step();
}

void Learner::zero(Zero how) {
  if (how != Zero::keep) {
    optimizer->zero_grad(how == Zero::to_none);
  }
}

void Learner::freeze_or_thaw(size_t part) {
  const auto name = name_of(part);
  for (auto& item : net->named_parameters()) {
    const auto own = item.key().substr(0, item.key().find_first_of("._"));
    if (own == name && item.key() != name + "_again") {
      item.value().requires_grad_(!item.value().requires_grad());
    }
  }
}

std::vector<std::string> ignored_names(const Program& program) {
  std::vector<std::string> names;
  for (size_t i = 0; i < program.parts.size(); ++i) {
    if (program.parts[i].kind == Part::Kind::ignored) {
      names.push_back(name_of(i));
    }
  }
  if (!names.empty()) {
    names.emplace_back("own");
  }
  return names;
}

bool is_ignored(const Program& program, const std::string& name) {
  const auto names = ignored_names(program);
  return std::find(names.begin(), names.end(), name) != names.end();
}

NamedValues values_of(const Learner& learner) {
  NamedValues values;
  for (const auto& item : learner.net->named_parameters()) {
    values.emplace_back(item.key(), copy_of(item.value()));
    values.emplace_back("the gradient of " + item.key(),
                        copy_of(item.value().grad()));
  }
  for (const auto& item : learner.net->named_buffers()) {
    values.emplace_back(item.key(), copy_of(item.value()));
  }
  return values;
}

std::string first_difference(const NamedValues& expected,
                             const NamedValues& got) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!is_same(expected[i].second, got[i].second)) {
      std::ostringstream text;
      text << "Expected " << expected[i].first << " to be\n"
           << expected[i].second << "\nbut got\n"
           << got[i].second;
      return text.str();
    }
  }
  return "";
}

}  // namespace ddp::test
