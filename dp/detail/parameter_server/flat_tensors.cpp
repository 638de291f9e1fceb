#include "dp/detail/parameter_server/flat_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

namespace dp::detail {
namespace {

/// Of a cache line; every dtype's alignment divides it.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t bytes_of(const FlatTensors::Piece& piece) {
  return c10::multiply_integers(piece.sizes) *
         static_cast<int64_t>(c10::elementSize(piece.dtype));
}

std::vector<FlatTensors::Piece> pieces_like(
    const std::vector<at::Tensor>& tensors) {
  std::vector<FlatTensors::Piece> pieces;
  for (const auto& tensor : tensors) {
    pieces.push_back({tensor.scalar_type(), tensor.sizes().vec()});
  }
  return pieces;
}

}  // namespace

FlatTensors::FlatTensors(const std::vector<at::Tensor>& like)
    : FlatTensors(pieces_like(like), at::Tensor()) {}

FlatTensors::FlatTensors(const std::vector<Piece>& pieces,
                         const at::Tensor& memory) {
  int64_t size = 0;
  for (const auto& piece : pieces) {
    size += aligned(bytes_of(piece));
    bytes_ += bytes_of(piece);
  }
  const bool fits = memory.defined() && memory.numel() >= size;
  memory_ = fits ? memory : at::zeros({size}, at::kByte);
  flat_ = memory_.narrow(0, 0, size);
  int64_t offset = flat_.storage_offset();
  for (const auto& piece : pieces) {
    auto tensor = at::empty({0}, piece.dtype);
    tensor.set_(flat_.storage(),
                offset / static_cast<int64_t>(c10::elementSize(piece.dtype)),
                piece.sizes,
                c10::contiguous_strides(piece.sizes));
    pieces_.push_back(std::move(tensor));
    offset += aligned(bytes_of(piece));
  }
}

}  // namespace dp::detail
