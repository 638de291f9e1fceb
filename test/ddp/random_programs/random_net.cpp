#include "test/ddp/random_programs/random_net.h"

#include <algorithm>

#include <torch/autograd.h>
#include <torch/utils.h>

#include "ddp/nn/checkpoint_activations.h"

namespace ddp::test {
namespace {

using torch::Tensor;

/// Normalizes a batch of two numbers, multiplies each by its factor, and
/// returns the sum.
Tensor normed(torch::nn::BatchNorm1d& norm, const Tensor& input) {
  const auto numbers = input.to(torch::kFloat);
  return (norm->forward(numbers.slice(0, 0, 2).view({2, 1})).view({2}) *
          numbers.slice(0, 2, 4))
      .to(torch::kDouble)
      .sum();
}

/// Returns 0; its backward returns an undefined gradient.
struct Silent : torch::autograd::Function<Silent> {
  static Tensor forward(torch::autograd::AutogradContext* /*context*/,
                        const Tensor& /*weight*/) {
    return torch::zeros({}, torch::kDouble);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      const torch::autograd::variable_list& /*gradients*/) {
    return {Tensor()};
  }
};

}  // namespace

RandomNetImpl::RandomNetImpl(const Program& program, int rank)
    : parts_(program.parts),
      weights_(parts_.size()),
      factors_(parts_.size()),
      tables_(parts_.size(), nullptr),
      norms_(parts_.size(), nullptr) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    add_part(i, static_cast<double>(i) + rank);
  }
  sum_ = register_buffer("sum", torch::zeros({1}, torch::kDouble) + rank);
  count_ = register_buffer("count", torch::zeros({}, torch::kLong) + rank);
  own_ = register_buffer("own", torch::zeros({2}) + rank);
}

void RandomNetImpl::add_part(size_t i, double value) {
  const Part& part = parts_[i];
  if (part.kind == Part::Kind::rows) {
    tables_[i] = register_module(
        name_of(i),
        torch::nn::Embedding(torch::nn::EmbeddingOptions(3, 2)
                                 ._weight(torch::full({3, 2}, value))
                                 .sparse(true)));
    return;
  }
  if (part.kind == Part::Kind::norm) {
    norms_[i] = register_module(
        name_of(i),
        torch::nn::BatchNorm1d(
            torch::nn::BatchNorm1dOptions(1).eps(0).momentum(0.5)));
    const torch::NoGradGuard no_grad;
    norms_[i]->weight.fill_(value);
    norms_[i]->running_mean.fill_(value);
    return;
  }
  const auto weight = part.kind == Part::Kind::matrix
                          ? torch::full({part.size, 4}, value, part.dtype)
                          : torch::full({part.size}, value, part.dtype);
  weights_[i] =
      register_parameter(name_of(i), weight, part.kind != Part::Kind::frozen);
  if (part.kind == Part::Kind::tied) {
    register_parameter(name_of(i) + "_again", weights_[i]);
  } else if (part.kind == Part::Kind::product) {
    factors_[i] = register_parameter(name_of(i) + "_factor",
                                     torch::full_like(weight, value + 1));
  }
}

Tensor RandomNetImpl::forward(const std::vector<Tensor>& inputs) {
  TORCH_CHECK(inputs.size() == parts_.size(),
              "Expected an input for each part");
  auto total = torch::zeros({}, torch::kDouble);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (inputs[i].defined()) {
      total = total + term(i, inputs[i]);
    } else if (parts_[i].kind == Part::Kind::silent) {
      total = total + Silent::apply(weights_[i]);
    }
  }
  if (is_training()) {
    const torch::NoGradGuard no_grad;
    sum_ += torch::nan_to_num(inputs[0], 0, 0, 0).sum();
    count_ += 1;
    own_ += 1;
  }
  return total * 12;
}

Tensor RandomNetImpl::term(size_t part, const Tensor& input) {
  switch (parts_[part].kind) {
    case Part::Kind::rows:
      return tables_[part]->forward(input).to(torch::kDouble).sum();
    case Part::Kind::norm:
      return normed(norms_[part], input);
    default:
      break;
  }
  const auto compute = [this, part](const Tensor& x) {
    return product(part, x);
  };
  const auto twice = [compute](const Tensor& x) {
    return checkpoint_activations(compute, x);
  };
  const auto memory = is_plain_ ? Part::Memory::kept : parts_[part].memory;
  return memory == Part::Memory::nested ? checkpoint_activations(twice, input)
         : memory == Part::Memory::checkpointed ? twice(input)
                                                : compute(input);
}

Tensor RandomNetImpl::product(size_t part, const Tensor& input) const {
  const auto& weight = weights_[part];
  const auto kind = parts_[part].kind;
  const auto x = kind == Part::Kind::matrix ? input.unsqueeze(1) : input;
  const auto product = weight.to(torch::kDouble) * x;
  if (kind == Part::Kind::product) {
    return (product * factors_[part]).sum();
  }
  // Two halves, so that one parameter gets two gradients.
  return kind == Part::Kind::tied
             ? product.sum() / 2 + (weight.to(torch::kDouble) * x).sum() / 2
             : product.sum();
}

RandomNet net_in_file(const Program& program, size_t act) {
  return RandomNet(program, /*rank=*/4 + static_cast<int>(act % 4));
}

std::string name_of(size_t part) {
  return "p" + std::to_string(part);
}

size_t part_of(const std::string& parameter) {
  return static_cast<size_t>(std::stoi(parameter.substr(1)));
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

}  // namespace ddp::test
