#include "dp/servers/detail/flat_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

namespace dp::detail {
namespace {

/// Size of a cache line in bytes. A multiple of every dtype's alignment.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

FlatTensors::FlatTensors(const std::vector<at::Tensor>& like) {
  int64_t size = 0;
  for (const auto& tensor : like) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    size += aligned(bytes);
    bytes_ += bytes;
  }
  flat_ = at::zeros({size}, at::kByte);
  int64_t offset = 0;
  for (const auto& tensor : like) {
    auto piece = at::empty({0}, tensor.scalar_type());
    piece.set_(flat_.storage(),
               offset / static_cast<int64_t>(tensor.element_size()),
               tensor.sizes(),
               c10::contiguous_strides(tensor.sizes()));
    pieces_.push_back(std::move(piece));
    offset += aligned(static_cast<int64_t>(tensor.nbytes()));
  }
}

}  // namespace dp::detail
