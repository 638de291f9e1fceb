#include "ddp/reduce/detail/pass_mark.h"

#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>

namespace ddp::detail {

at::Tensor encode_mark(const PassMark& mark, int64_t numel) {
  auto elements = at::zeros({numel}, at::kFloat);
  auto* element = elements.mutable_data_ptr<float>();
  element[mark.stops ? 1 : 0] = 1;
  if (numel == kVoteNumel) {
    return elements;
  }
  element += kVoteNumel;
  *element++ = mark.asks ? 1.0f : 0.0f;
  for (int bit = 0; bit < kHashBits && mark.knows_hash; ++bit, element += 2) {
    element[(mark.hash >> bit) & 1] = 1;
  }
  return elements;
}

MarkSums decode_marks(const at::Tensor& sums) {
  const auto nonzero = sums.ne(0).cpu();
  const bool* element = nonzero.const_data_ptr<bool>();
  MarkSums result;
  result.any_stops = element[1];
  result.all_stop = element[1] && !element[0];
  if (nonzero.numel() == kVoteNumel) {
    return result;
  }
  element += kVoteNumel;
  result.any_asks = *element++;
  for (int bit = 0; bit < kHashBits; ++bit, element += 2) {
    result.differs |= element[0] && element[1];
  }
  return result;
}

size_t mix_hash(size_t hash, size_t number) {
  uint64_t mixed = (uint64_t{hash} + number + 1) * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 32)) * 0xd6e8feb86659fd93;
  return static_cast<size_t>(mixed ^ (mixed >> 32));
}

}  // namespace ddp::detail
