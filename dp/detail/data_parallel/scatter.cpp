#include "dp/detail/data_parallel/scatter.h"

#include <algorithm>
#include <iterator>

#include <ATen/WrapDimUtils.h>
#include <c10/util/Exception.h>

namespace dp::detail {
namespace {

/// Rows of each device, of one tensor.
using Rows = std::vector<int64_t>;

Rows rows_of(const at::Tensor& tensor, const SplitRule& rule, int64_t dim) {
  const auto rank = tensor.dim();
  TORCH_CHECK(rank > 0 && dim >= -rank && dim < rank,
              "Expected tensors with a dimension ",
              dim,
              " to split, but got one of size ",
              tensor.sizes(),
              "; a value for every replica is passed as a number, or in a "
              "struct without tensor_fields");
  return split_rows(tensor.size(c10::maybe_wrap_dim(dim, rank)), rule);
}

bool takes_part(int64_t rows) {
  return rows > 0;
}

bool agree(const Rows& a, const Rows& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](int64_t x, int64_t y) {
    return takes_part(x) == takes_part(y);
  });
}

void expect_agreement(const at::Tensor& a,
                      const Rows& a_rows,
                      const at::Tensor& b,
                      const Rows& b_rows) {
  TORCH_CHECK(
      agree(a_rows, b_rows),
      "Expected tensors that split into chunks for the same devices, but got "
      "one of size ",
      a.sizes(),
      " in ",
      std::count_if(a_rows.begin(), a_rows.end(), takes_part),
      " chunks and one of size ",
      b.sizes(),
      " in ",
      std::count_if(b_rows.begin(), b_rows.end(), takes_part),
      "; give all inputs as many rows");
}

std::vector<at::Tensor> chunks_of(const at::Tensor& tensor,
                                  const Rows& rows,
                                  int64_t dim) {
  Rows sizes;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(sizes), takes_part);
  return sizes.size() < 2 ? std::vector<at::Tensor>{tensor}
                          : tensor.split_with_sizes(sizes, dim);
}

std::vector<Part> parts_for(const Rows& rows) {
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
  std::vector<Rows> rows(tensors.size());
  size_t first = tensors.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) {
      continue;
    }
    rows[i] = rows_of(tensors[i], rule, dim);
    if (first == tensors.size()) {
      first = i;
    }
    expect_agreement(tensors[first], rows[first], tensors[i], rows[i]);
  }
  auto parts = parts_for(first < tensors.size() ? rows[first] : Rows());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto chunks = tensors[i].defined()
                            ? chunks_of(tensors[i], rows[i], dim)
                            : std::vector<at::Tensor>(parts.size());
    for (size_t k = 0; k < parts.size(); ++k) {
      parts[k].tensors.push_back(
          to_device(chunks[k], devices[parts[k].replica]));
    }
  }
  return parts;
}

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  // A copy to the CPU must have happened when it is read there.
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
