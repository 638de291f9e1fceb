#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Describes the tensor that a rank contributes to a gather. The ranks exchange
/// the descriptions before any data.
struct RowsSpec {
  std::string failure;  ///< why the rank has no data, one line; else ""
  bool has_tensor = false;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> sizes;

  /// Size of the first dimension; 1 for a scalar, 0 without a tensor.
  int64_t rows() const;
  /// Bytes of the whole tensor.
  int64_t bytes() const;
};

RowsSpec rows_spec(const at::Tensor& tensor);

std::string to_text(const RowsSpec& spec);
RowsSpec rows_spec_of(const std::string& text);

/// Pure: returns why the ranks' tensors cannot be gathered, or "". They must
/// have the same dtype and the same sizes except for the first. A rank may have
/// no tensor.
std::string gather_error(const std::vector<RowsSpec>& ranks);

/// Pure: gives each rank without a tensor an empty tensor (zero rows) like
/// those of the other ranks, if any rank has a tensor.
std::vector<RowsSpec> without_gaps(std::vector<RowsSpec> ranks);

/// Returns the tensor's bytes on `device`, padded with zeros to `size`.
/// Gathering bytes supports every dtype; backends support only some.
at::Tensor to_bytes(const at::Tensor& tensor, int64_t size, c10::Device device);

/// Returns a tensor that shares the memory of `bytes`.
at::Tensor tensor_of(const at::Tensor& bytes, const RowsSpec& spec);

}  // namespace ddp::detail
