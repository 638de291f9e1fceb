#include "test/ddp/random_programs/values.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace ddp::test {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

Tensor copy_of(const Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  return tensor.defined() ? tensor.detach().to_dense().clone() : Tensor();
}

bool is_gradient(const std::string& name) {
  return name.rfind("the gradient of", 0) == 0;
}

bool is_note(const std::string& name) {
  return name.rfind("note", 0) == 0;
}

/// Returns whether `got` is within the tolerance. If an element of the expected
/// gradient is not finite, all elements may be NaN.
bool is_near(const Tensor& expected, const Tensor& got, double tolerance) {
  if (!expected.defined() || !got.defined()) {
    return expected.defined() == got.defined();
  }
  if (!expected.isfinite().all().item<bool>()) {
    return !got.isfinite().all().item<bool>();
  }
  return expected.dtype() == got.dtype() &&
         torch::allclose(expected.to(torch::kDouble),
                         got.to(torch::kDouble),
                         /*rtol=*/0,
                         tolerance);
}

std::string text_of(const std::string& name,
                    const Tensor& expected,
                    const Tensor& got) {
  std::ostringstream text;
  text << "Expected " << name << " to be\n" << expected << "\nbut got\n" << got;
  return text.str();
}

}  // namespace

NamedValues values_of(const Learner& learner, const Compared& compared) {
  NamedValues values;
  for (const auto& item : learner.net->named_parameters()) {
    if (compared.parameters) {
      values.emplace_back(item.key(), copy_of(item.value()));
    }
    if (compared.gradients) {
      values.emplace_back("the gradient of " + item.key(),
                          copy_of(learner.gradient_of(item.value())));
    }
  }
  for (const auto& item : learner.net->named_buffers()) {
    values.emplace_back("buffer " + item.key(), copy_of(item.value()));
  }
  for (const auto& [name, value] : learner.notes) {
    values.emplace_back("note " + name, copy_of(value));
  }
  return values;
}

bool is_same(const Tensor& left, const Tensor& right) {
  return left.defined() == right.defined() &&
         (!left.defined() ||
          (left.dtype() == right.dtype() && left.sizes() == right.sizes() &&
           torch::allclose(left,
                           right,
                           /*rtol=*/0,
                           /*atol=*/0,
                           /*equal_nan=*/true)));
}

std::string first_difference(const NamedValues& expected,
                             const NamedValues& got) {
  if (expected.size() != got.size()) {
    return "Expected " + std::to_string(expected.size()) + " values, but got " +
           std::to_string(got.size());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!is_same(expected[i].second, got[i].second)) {
      return text_of(expected[i].first, expected[i].second, got[i].second);
    }
  }
  return "";
}

std::string first_far_off(const NamedValues& expected,
                          const NamedValues& got,
                          double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, tensor] = expected[i];
    const bool is_fine =
        is_gradient(name) ? is_near(tensor, got[i].second, tolerance)
        : name.rfind("buffer", 0) == 0 ? is_same(tensor, got[i].second)
                                       : true;  // lossy training differs
    if (!is_fine) {
      return text_of(name, tensor, got[i].second);
    }
  }
  return "";
}

bool has_same_state(const Learner& left,
                    const Learner& right,
                    const std::string& parameter) {
  const auto state_of = [&](const Learner& learner) {
    const auto tensor = learner.net->named_parameters()[parameter];
    const auto& states = learner.optimizer->state();
    const auto found = states.find(tensor.unsafeGetTensorImpl());
    Tensors tensors;
    if (found == states.end()) {
      return tensors;
    }
    if (auto* adam =
            dynamic_cast<torch::optim::AdamParamState*>(found->second.get())) {
      return Tensors{
          torch::tensor(adam->step()), adam->exp_avg(), adam->exp_avg_sq()};
    }
    auto& sgd = dynamic_cast<torch::optim::SGDParamState&>(*found->second);
    return Tensors{copy_of(sgd.momentum_buffer())};
  };
  const auto a = state_of(left);
  const auto b = state_of(right);
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_same);
}

std::string first_parting(const std::vector<NamedValues>& expected,
                          const std::vector<NamedValues>& got,
                          const std::set<std::string>& apart) {
  for (size_t rank = 1; rank < expected.size(); ++rank) {
    for (size_t i = 0; i < expected[0].size(); ++i) {
      if (is_note(expected[0][i].first)) {
        break;  // some ranks have more
      }
      if (apart.count(expected[0][i].first) == 0 &&
          is_same(expected[0][i].second, expected[rank][i].second) &&
          !is_same(got[0][i].second, got[rank][i].second)) {
        return "on rank " + std::to_string(rank) + ", beside rank 0: " +
               text_of(got[0][i].first, got[0][i].second, got[rank][i].second);
      }
    }
  }
  return "";
}

}  // namespace ddp::test
