#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// What a rank brings to a gather, told to all before anything is sent.
struct RowsSpec {
  std::string failure;  ///< why it brings nothing, one line; "" when it does
  bool has_tensor = false;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> sizes;

  /// In the first dimension, 1 where there is none; 0 without a tensor.
  int64_t rows() const;
  /// Of all rows.
  int64_t bytes() const;
};

RowsSpec rows_spec(const at::Tensor& tensor);

std::string to_text(const RowsSpec& spec);
RowsSpec rows_spec_of(const std::string& text);

/// Pure: why what the ranks bring does not fit together, "" when it does: one
/// dtype and the same sizes but for the first. A rank without a tensor fits.
std::string gather_error(const std::vector<RowsSpec>& ranks);

/// Pure: a rank without a tensor has one of no rows, as the others', if there
/// is one.
std::vector<RowsSpec> without_gaps(std::vector<RowsSpec> ranks);

/// The bytes of the rows on a device, padded with zeros to `size`. As bytes any
/// dtype travels; backends know some only.
at::Tensor to_bytes(const at::Tensor& tensor, int64_t size, c10::Device device);

/// The tensor of these bytes, in their memory.
at::Tensor tensor_of(const at::Tensor& bytes, const RowsSpec& spec);

}  // namespace ddp::detail
