#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// A matrix of rows x columns, and the rank of the product that approximates
/// it.
struct LowRankShape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t rank = 0;

  int64_t p_numel() const { return rows * rank; }
  int64_t q_numel() const { return columns * rank; }
};

/// Divides the gradients of a bucket into two kinds: sent as two factors, and
/// sent uncompressed.
struct LowRankLayout {
  struct Factor {
    size_t gradient;  ///< index in the bucket
    LowRankShape shape;
  };

  /// Factors of one shape are adjacent, as in PyTorch: random numbers are drawn
  /// in this order.
  std::vector<Factor> factors;
  std::vector<size_t> plain;
  int64_t plain_numel = 0;
  int64_t p_numel = 0;
  int64_t q_numel = 0;
  int64_t whole_numel = 0;  ///< of all gradients

  int64_t sent_numel() const { return plain_numel + p_numel + q_numel; }
};

/// Computes the layout; pure. A gradient is factored if the factors have fewer
/// elements than the gradient divided by `min_compression_rate`. As a matrix it
/// has one row for each index of its first dimension.
LowRankLayout low_rank_layout(const std::vector<at::Tensor>& gradients,
                              int64_t max_rank,
                              double min_compression_rate);

/// Makes the columns of the matrices [batch, rows, columns] orthonormal, in
/// place. Uses Gram-Schmidt for up to two columns and in half precision; a
/// column that is zero or depends on the columns before it then becomes zero.
/// Otherwise uses QR.
/// @param epsilon  added to the norms that Gram-Schmidt divides by.
void orthogonalize(const at::Tensor& matrices, double epsilon);

/// Fills columns of zeros, each column with its own numbers; a factor with
/// zeros would stay zero for ever. Requires columns <= rows.
void fill_zero_columns(const at::Tensor& matrices);

/// Draws a sequence of seeds below 1e9. Equals numpy's
/// RandomState(seed).randint(1'000'000'000), with which PyTorch's PowerSGD
/// seeds the random matrices of its steps.
class SeedDraws {
 public:
  explicit SeedDraws(uint32_t seed) : random_(seed) {}

  uint32_t next();

  /// Returns the number of seeds drawn so far.
  int64_t count() const { return count_; }

 private:
  std::mt19937 random_;
  int64_t count_ = 0;
};

}  // namespace ddp::detail
