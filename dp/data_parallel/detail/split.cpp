#include "dp/data_parallel/detail/split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace dp::detail {
namespace {

template <typename Number>
void check_numbers(const char* what,
                   const std::vector<Number>& numbers,
                   size_t devices) {
  TORCH_CHECK(numbers.size() == devices,
              "Expected one of ",
              what,
              " for each of ",
              devices,
              " devices, but got ",
              numbers.size(),
              ": ",
              c10::Join(", ", numbers));
  for (const Number number : numbers) {
    TORCH_CHECK(std::isfinite(static_cast<double>(number)) && number >= 0,
                "Expected ",
                what,
                " of 0 or more, but got ",
                c10::Join(", ", numbers));
  }
  TORCH_CHECK(std::any_of(numbers.begin(),
                          numbers.end(),
                          [](Number number) { return number > 0; }),
              "Expected ",
              what,
              " that are not all 0, but got ",
              c10::Join(", ", numbers));
}

std::vector<int64_t> split_evenly(int64_t rows, size_t devices) {
  const auto count = static_cast<int64_t>(devices);
  const int64_t each = (rows + count - 1) / count;
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(std::clamp<int64_t>(rows - i * each, 0, each));
  }
  return result;
}

/// Hamilton's method: rounds every share down, then adds one row for each of
/// the largest remainders.
std::vector<int64_t> split_by_weight(int64_t rows,
                                     const std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> result;
  std::vector<double> remainders;
  int64_t left = rows;
  for (const double weight : weights) {
    const double share = static_cast<double>(rows) * (weight / total);
    result.push_back(std::min(static_cast<int64_t>(std::floor(share)), left));
    remainders.push_back(share - std::floor(share));
    left -= result.back();
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return remainders[a] > remainders[b];
  });
  for (int64_t i = 0; i < left; ++i) {
    ++result[order[static_cast<size_t>(i) % order.size()]];
  }
  return result;
}

}  // namespace

void check(const SplitRule& rule) {
  TORCH_CHECK(rule.sizes.empty() || rule.weights.empty(),
              "Expected chunk_sizes or chunk_weights, but got both");
  if (!rule.sizes.empty()) {
    check_numbers("chunk_sizes", rule.sizes, rule.devices);
  }
  if (!rule.weights.empty()) {
    check_numbers("chunk_weights", rule.weights, rule.devices);
  }
}

std::vector<int64_t> split_rows(int64_t rows, const SplitRule& rule) {
  if (!rule.weights.empty()) {
    return split_by_weight(rows, rule.weights);
  }
  if (rule.sizes.empty()) {
    return split_evenly(rows, rule.devices);
  }
  const auto total =
      std::accumulate(rule.sizes.begin(), rule.sizes.end(), int64_t{0});
  TORCH_CHECK(total == rows,
              "Expected a batch of ",
              total,
              " rows for chunk_sizes ",
              c10::Join(" + ", rule.sizes),
              ", but got ",
              rows,
              "; give chunk_weights for batches of any size");
  return rule.sizes;
}

}  // namespace dp::detail
