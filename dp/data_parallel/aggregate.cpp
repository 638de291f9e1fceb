#include "dp/data_parallel/aggregate.h"

#include <algorithm>
#include <numeric>

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

namespace dp {
namespace {

bool is_scalar(const torch::Tensor& tensor) {
  return tensor.dim() == 0;
}

bool fit_along(int64_t dim, const torch::Tensor& a, const torch::Tensor& b) {
  if (a.dim() != b.dim()) {
    return false;
  }
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (i != dim && a.size(i) != b.size(i)) {
      return false;
    }
  }
  return true;
}

void expect_equal_sizes(const Parts& parts) {
  const auto& first = parts.tensors.front();
  for (size_t i = 1; i < parts.tensors.size(); ++i) {
    TORCH_CHECK(parts.tensors[i].sizes() == first.sizes(),
                "Expected replicas to return tensors of one size to be added "
                "up, but got ",
                first.sizes(),
                " first and ",
                parts.tensors[i].sizes(),
                " from part ",
                i,
                "; concatenate them, or give another aggregate");
  }
}

void expect_to_fit(const Parts& parts, int64_t dim) {
  const auto& first = parts.tensors.front();
  for (size_t i = 1; i < parts.tensors.size(); ++i) {
    TORCH_CHECK(fit_along(dim, first, parts.tensors[i]),
                "Expected replicas to return tensors whose sizes differ in "
                "dimension ",
                dim,
                " alone, to be concatenated, but got ",
                first.sizes(),
                " first and ",
                parts.tensors[i].sizes(),
                " from part ",
                i,
                "; give another aggregate, or another dim");
  }
}

torch::Tensor scalars_to_vector(const Parts& parts) {
  TORCH_WARN_ONCE(
      "Was asked to gather along dimension 0, but all input tensors were "
      "scalars; will instead unsqueeze and return a vector. Give "
      "aggregate(dp::mean) or aggregate(dp::sum) to get a scalar.");
  std::vector<torch::Tensor> elements;
  for (const auto& tensor : parts.tensors) {
    elements.push_back(tensor.unsqueeze(0));
  }
  return at::cat(elements);
}

}  // namespace

torch::Tensor concatenate(const Parts& parts) {
  if (std::all_of(parts.tensors.begin(), parts.tensors.end(), is_scalar)) {
    return scalars_to_vector(parts);
  }
  const auto rank = parts.tensors.front().dim();
  TORCH_CHECK(rank > 0 && parts.dim >= -rank && parts.dim < rank,
              "Expected replicas to return tensors with a dimension ",
              parts.dim,
              " to be concatenated along, but got one of size ",
              parts.tensors.front().sizes(),
              "; give another aggregate, or another dim");
  const int64_t dim = c10::maybe_wrap_dim(parts.dim, rank);
  expect_to_fit(parts, dim);
  return parts.tensors.size() == 1 ? parts.tensors.front()
                                   : at::cat(parts.tensors, dim);
}

torch::Tensor sum(const Parts& parts) {
  expect_equal_sizes(parts);
  auto total = parts.tensors.front();
  for (size_t i = 1; i < parts.tensors.size(); ++i) {
    total = total + parts.tensors[i];
  }
  return total;
}

torch::Tensor mean(const Parts& parts) {
  expect_equal_sizes(parts);
  if (parts.tensors.size() == 1) {
    return parts.tensors.front();
  }
  const auto dtype = parts.tensors.front().scalar_type();
  TORCH_CHECK(!c10::isIntegralType(dtype, /*includeBool=*/true),
              "Expected replicas to return floating point numbers to take the "
              "mean of, but got ",
              dtype,
              "; add them up, or convert them in forward");
  const auto total = static_cast<double>(
      std::accumulate(parts.samples.begin(), parts.samples.end(), int64_t{0}));
  torch::Tensor result;
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    const auto share = static_cast<double>(parts.samples[i]) / total;
    const auto term = parts.tensors[i] * share;
    result = result.defined() ? result + term : term;
  }
  return result;
}

}  // namespace dp
