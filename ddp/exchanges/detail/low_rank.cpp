#include "ddp/exchanges/detail/low_rank.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>

namespace ddp::detail {
namespace {

LowRankShape low_rank_shape(at::IntArrayRef sizes, int64_t max_rank) {
  const int64_t numel = c10::multiply_integers(sizes);
  const int64_t rows = sizes.empty() ? 1 : sizes.front();
  const int64_t columns = rows == 0 ? 0 : numel / rows;
  return {rows, columns, std::min({rows, columns, max_rank})};
}

bool pays(const LowRankShape& shape, double min_compression_rate) {
  const auto factors = static_cast<double>(shape.p_numel() + shape.q_numel());
  return factors * min_compression_rate <
         static_cast<double>(shape.rows * shape.columns);
}

/// Returns the relative threshold below which the remainder of a column counts
/// as zero. If a column depends linearly on the columns before it, its
/// remainder is rounding noise with an arbitrary direction.
double rounding_of(at::ScalarType dtype) {
  constexpr double kMargin = 16;
  switch (dtype) {
    case at::kBFloat16:
      return kMargin * std::numeric_limits<c10::BFloat16>::epsilon();
    case at::kHalf:
      return kMargin * std::numeric_limits<c10::Half>::epsilon();
    case at::kFloat:
      return kMargin * std::numeric_limits<float>::epsilon();
    default:
      return kMargin * std::numeric_limits<double>::epsilon();
  }
}

void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const auto norm_of = [](const at::Tensor& columns) {
    return at::linalg_vector_norm(columns, 2, 1, /*keepdim=*/true);
  };
  const int64_t columns = matrices.size(2);
  const auto limits = norm_of(matrices) * rounding_of(matrices.scalar_type());
  for (int64_t i = 0; i < columns; ++i) {
    const auto column = matrices.narrow(2, i, 1);
    auto norm = norm_of(column);
    if (epsilon == 0) {
      norm.masked_fill_(norm <= limits.narrow(2, i, 1),
                        std::numeric_limits<double>::infinity());
    } else {
      norm.add_(epsilon);
    }
    column.div_(norm);
    if (i + 1 < columns) {
      const auto rest = matrices.narrow(2, i + 1, columns - i - 1);
      rest.sub_((column * rest).sum(1, /*keepdim=*/true) * column);
    }
  }
}

}  // namespace

LowRankLayout low_rank_layout(const std::vector<at::Tensor>& gradients,
                              int64_t max_rank,
                              double min_compression_rate) {
  using Factor = LowRankLayout::Factor;
  LowRankLayout layout;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto shape = low_rank_shape(gradients[i].sizes(), max_rank);
    const int64_t numel = gradients[i].numel();
    layout.whole_numel += numel;
    if (!gradients[i].is_floating_point() ||
        !pays(shape, min_compression_rate)) {
      layout.plain.push_back(i);
      layout.plain_numel += numel;
      continue;
    }
    layout.p_numel += shape.p_numel();
    layout.q_numel += shape.q_numel();
    // Inserted behind the last factor of the same shape.
    const auto same =
        std::find_if(layout.factors.rbegin(),
                     layout.factors.rend(),
                     [&](const Factor& other) {
                       return other.shape.rows == shape.rows &&
                              other.shape.columns == shape.columns;
                     });
    layout.factors.insert(
        same == layout.factors.rend() ? layout.factors.end() : same.base(),
        Factor{i, shape});
  }
  return layout;
}

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  const auto dtype = matrices.scalar_type();
  if (matrices.size(2) <= 2 || dtype == at::kHalf || dtype == at::kBFloat16) {
    gram_schmidt(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

void fill_zero_columns(const at::Tensor& matrices) {
  const auto is_zero = matrices.eq(0).all(1, /*keepdim=*/true);
  matrices.add_(is_zero);
  matrices.diagonal(0, 1, 2).add_(is_zero.squeeze(1));
}

uint32_t SeedDraws::next() {
  constexpr uint32_t kLimit = 1'000'000'000;
  constexpr uint32_t kMask = (1U << 30) - 1;
  ++count_;
  uint32_t number = kLimit;
  while (number >= kLimit) {
    number = static_cast<uint32_t>(random_()) & kMask;
  }
  return number;
}

}  // namespace ddp::detail
