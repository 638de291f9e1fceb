#include "dp/detail/parameter_server/flat_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/util/strides.h>

namespace dp::detail {
namespace {

/// Of a cache line; every dtype's alignment divides it.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t bytes_in(const at::Tensor& tensor) {
  return tensor.numel() *
         static_cast<int64_t>(c10::elementSize(tensor.scalar_type()));
}

}  // namespace

FlatTensors::FlatTensors(const std::vector<at::Tensor>& like) {
  int64_t size = 0;
  for (const auto& tensor : like) {
    size += aligned(bytes_in(tensor));
    bytes_ += bytes_in(tensor);
  }
  flat_ = at::zeros({size}, at::kByte);
  int64_t offset = 0;
  for (const auto& tensor : like) {
    auto piece = at::empty({0}, tensor.scalar_type());
    piece.set_(
        flat_.storage(),
        offset / static_cast<int64_t>(c10::elementSize(tensor.scalar_type())),
        tensor.sizes(),
        c10::contiguous_strides(tensor.sizes()));
    pieces_.push_back(std::move(piece));
    offset += aligned(bytes_in(tensor));
  }
}

}  // namespace dp::detail
