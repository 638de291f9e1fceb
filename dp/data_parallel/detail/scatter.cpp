#include "dp/data_parallel/detail/scatter.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <ATen/WrapDimUtils.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace dp::detail {
namespace {

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

/// Returns a chunk for each part, or the whole tensor for a single part.
std::vector<at::Tensor> chunks_of(const at::Tensor& tensor,
                                  const std::vector<Part>& parts,
                                  int64_t dim) {
  if (parts.size() < 2 || !tensor.defined()) {
    return std::vector<at::Tensor>(parts.size(), tensor);
  }
  std::vector<int64_t> sizes;
  for (const auto& part : parts) {
    sizes.push_back(part.samples);
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

}  // namespace

void check_chunk_sizes(const std::vector<int64_t>& chunk_sizes,
                       size_t devices) {
  if (chunk_sizes.empty()) {
    return;
  }
  const auto given = c10::Join(", ", chunk_sizes);
  TORCH_CHECK(chunk_sizes.size() == devices,
              "Expected one of chunk_sizes for each of ",
              devices,
              " devices, but got ",
              chunk_sizes.size(),
              ": ",
              given);
  const auto [least, most] =
      std::minmax_element(chunk_sizes.begin(), chunk_sizes.end());
  TORCH_CHECK(
      *least >= 0, "Expected chunk_sizes of 0 or more, but got ", given);
  TORCH_CHECK(
      *most > 0, "Expected chunk_sizes that are not all 0, but got ", given);
}

std::vector<int64_t> split_rows(int64_t rows,
                                size_t devices,
                                const std::vector<int64_t>& chunk_sizes) {
  if (chunk_sizes.empty()) {
    const auto count = static_cast<int64_t>(devices);
    const int64_t each = (rows + count - 1) / count;
    std::vector<int64_t> shares;
    for (int64_t i = 0; i < count; ++i) {
      shares.push_back(std::clamp<int64_t>(rows - i * each, 0, each));
    }
    return shares;
  }
  const auto total =
      std::accumulate(chunk_sizes.begin(), chunk_sizes.end(), int64_t{0});
  TORCH_CHECK(total == rows,
              "Expected a batch of ",
              total,
              " rows for chunk_sizes ",
              c10::Join(" + ", chunk_sizes),
              ", but got ",
              rows,
              "; leave chunk_sizes out for batches of other sizes");
  return chunk_sizes;
}

std::vector<Part> scatter(const std::vector<at::Tensor>& tensors,
                          const std::vector<c10::Device>& devices,
                          const std::vector<int64_t>& chunk_sizes,
                          int64_t dim) {
  std::vector<Part> parts;
  if (const auto count = count_rows(tensors, dim)) {
    const auto rows = split_rows(*count, devices.size(), chunk_sizes);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] > 0) {
        parts.push_back({i, rows[i], {}});
      }
    }
  }
  parts.resize(std::max<size_t>(parts.size(), 1));
  for (const auto& tensor : tensors) {
    const auto chunks = chunks_of(tensor, parts, dim);
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
