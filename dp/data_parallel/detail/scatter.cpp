#include "dp/data_parallel/detail/scatter.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include <ATen/WrapDimUtils.h>
#include <c10/util/Exception.h>

namespace dp::detail {
namespace {

/// Number of rows of each device.
using RowCounts = std::vector<int64_t>;

constexpr const char* kForAll =
    "a value for every replica is passed as a number, or in a struct without "
    "tensor_fields, whose tensors stay on their device: forward moves them";

int64_t count_rows(const at::Tensor& tensor, int64_t dim) {
  const auto rank = tensor.dim();
  TORCH_CHECK(rank > 0 && dim >= -rank && dim < rank,
              "Expected tensors with a dimension ",
              dim,
              " to split, but got one of size ",
              tensor.sizes(),
              "; ",
              kForAll);
  return tensor.size(c10::maybe_wrap_dim(dim, rank));
}

/// Returns the number of rows, which all defined tensors must share, or
/// std::nullopt if no tensor is defined.
std::optional<int64_t> count_rows(const std::vector<at::Tensor>& tensors,
                                  int64_t dim) {
  const at::Tensor* first = nullptr;
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) {
      continue;
    }
    first = first == nullptr ? &tensor : first;
    TORCH_CHECK(count_rows(tensor, dim) == count_rows(*first, dim),
                "Expected tensors of one size in dimension ",
                dim,
                ", to be split alike, but got one of size ",
                first->sizes(),
                " and one of size ",
                tensor.sizes(),
                "; give all inputs as many rows; ",
                kForAll);
  }
  return first == nullptr ? std::nullopt
                          : std::optional(count_rows(*first, dim));
}

bool takes_part(int64_t rows) {
  return rows > 0;
}

std::vector<at::Tensor> chunks_of(const at::Tensor& tensor,
                                  const RowCounts& rows,
                                  int64_t dim) {
  RowCounts sizes;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(sizes), takes_part);
  if (sizes.size() < 2) {
    return {tensor};
  }
  auto chunks = tensor.split_with_sizes(sizes, dim);
  for (auto& chunk : chunks) {
    if (!chunk.requires_grad()) {
      // Detached from the whole batch, so that forward may modify the chunk in
      // place.
      chunk = chunk.detach();
    }
  }
  return chunks;
}

std::vector<Part> parts_for(const RowCounts& rows) {
  std::vector<Part> parts;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (takes_part(rows[i])) {
      parts.push_back({i, rows[i], {}});
    }
  }
  return parts.empty() ? std::vector<Part>(1) : parts;
}

}  // namespace

std::vector<Part> scatter(const std::vector<at::Tensor>& tensors,
                          const std::vector<c10::Device>& devices,
                          const SplitRule& rule,
                          int64_t dim) {
  const auto count = count_rows(tensors, dim);
  const auto rows = count ? split_rows(*count, rule) : RowCounts();
  auto parts = parts_for(rows);
  for (const auto& tensor : tensors) {
    const auto chunks = tensor.defined()
                            ? chunks_of(tensor, rows, dim)
                            : std::vector<at::Tensor>(parts.size());
    for (size_t k = 0; k < parts.size(); ++k) {
      parts[k].tensors.push_back(
          to_device(chunks[k], devices[parts[k].replica]));
    }
  }
  return parts;
}

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  // The CPU may read the copy at once, so a copy to the CPU is blocking.
  return tensor.defined() ? tensor.to(device, /*non_blocking=*/!device.is_cpu())
                          : tensor;
}

int64_t bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return 0;
  }
  if (tensor.is_sparse()) {
    return bytes_of(tensor._indices()) + bytes_of(tensor._values());
  }
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += bytes_of(tensor);
  }
  return bytes;
}

}  // namespace dp::detail
