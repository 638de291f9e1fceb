#include "test/ddp/random_programs/values.h"

#include <sstream>

#include <torch/utils.h>

namespace ddp::test {
namespace {

using torch::Tensor;

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

/// Returns whether `got` is within the tolerance. An expected gradient with an
/// element that is not finite may be NaN in all elements.
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

NamedValues values_of(const Learner& learner) {
  NamedValues values;
  for (const auto& item : learner.net->named_parameters()) {
    values.emplace_back(item.key(), copy_of(item.value()));
    values.emplace_back("the gradient of " + item.key(),
                        copy_of(item.value().grad()));
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

std::string first_parting(const std::vector<NamedValues>& expected,
                          const std::vector<NamedValues>& got) {
  for (size_t rank = 1; rank < expected.size(); ++rank) {
    for (size_t i = 0; i < expected[0].size(); ++i) {
      if (is_note(expected[0][i].first)) {
        break;  // some ranks have more
      }
      if (is_same(expected[0][i].second, expected[rank][i].second) &&
          !is_same(got[0][i].second, got[rank][i].second)) {
        return "on rank " + std::to_string(rank) + ", beside rank 0: " +
               text_of(got[0][i].first, got[0][i].second, got[rank][i].second);
      }
    }
  }
  return "";
}

}  // namespace ddp::test
