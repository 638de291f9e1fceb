#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// A matrix of rows x columns and the rank of the product that stands for it.
struct LowRankShape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t rank = 0;

  int64_t p_numel() const { return rows * rank; }
  int64_t q_numel() const { return columns * rank; }
};

/// Which gradients of a bucket are sent as two factors, and which as they are.
struct LowRankLayout {
  struct Factor {
    size_t gradient;  ///< index in the bucket
    LowRankShape shape;
  };

  /// Those of one shape together, as PyTorch has them: random numbers are drawn
  /// in this order.
  std::vector<Factor> factors;
  std::vector<size_t> plain;
  int64_t plain_numel = 0;
  int64_t p_numel = 0;
  int64_t q_numel = 0;
  int64_t whole_numel = 0;  ///< of all gradients

  int64_t sent_numel() const { return plain_numel + p_numel + q_numel; }
};

/// Pure. A gradient is factored where that sends less than its elements divided
/// by `min_compression_rate`; as a matrix it has a row for each index of its
/// first dimension.
LowRankLayout low_rank_layout(const std::vector<at::Tensor>& gradients,
                              int64_t max_rank,
                              double min_compression_rate);

/// Makes the columns of the matrices [batch, rows, columns] orthonormal, in
/// place. Up to two columns, and in half precision, by Gram-Schmidt, where a
/// column that depends on those before it, or is zero, becomes zero; else by
/// QR.
/// @param epsilon  added to the norms that Gram-Schmidt divides by.
void orthogonalize(const at::Tensor& matrices, double epsilon);

/// Puts numbers into columns that are zero, others into each: with zeros a
/// factor would stay zero for ever. There are no more columns than rows.
void fill_zero_columns(const at::Tensor& matrices);

}  // namespace ddp::detail
