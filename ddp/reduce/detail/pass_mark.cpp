#include "ddp/reduce/detail/pass_mark.h"

#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>

#include "ddp/tensors/streams.h"

namespace ddp::detail {
namespace {

/// Encodes a mark as floats on the CPU. A bit is a pair of elements: (1, 0)
/// stands for 0, (0, 1) for 1 and (0, 0) for unknown. In every dtype and for
/// any number of ranks, a sum of these elements is zero only if each of them is
/// zero. Two ranks therefore differ in a bit exactly if both sums of its pair
/// are nonzero.
at::Tensor encode_mark(const PassMark& mark, int64_t numel) {
  auto elements = at::zeros({numel}, at::kFloat);
  auto* element = elements.mutable_data_ptr<float>();
  element[mark.stops ? 1 : 0] = 1;
  if (numel == kVoteNumel) {
    return elements;
  }
  element += kVoteNumel;
  *element++ = mark.misses ? 1.0f : 0.0f;
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
  result.any_misses = *element++;
  result.any_asks = *element++;
  for (int bit = 0; bit < kHashBits; ++bit, element += 2) {
    result.differs |= element[0] && element[1];
  }
  return result;
}

class HostMarks : public PassMarks {
 public:
  int64_t numel() const override { return kMarkNumel; }
  void write(const PassMark& mark, const at::Tensor& elements) override {
    elements.copy_(encode_mark(mark, kMarkNumel));
  }
  MarkSums read(const at::Tensor& sums) override { return decode_marks(sums); }
  void record(const at::Tensor& /*elements*/) override {
    TORCH_INTERNAL_ASSERT(false);
  }
  void vote(bool /*stops*/) override { TORCH_INTERNAL_ASSERT(false); }
};

class DeviceMarks : public PassMarks {
 public:
  int64_t numel() const override { return kVoteNumel; }

  void write(const PassMark& mark, const at::Tensor& elements) override {
    if (!vote_.defined()) {
      streams_.emplace(elements.device());
      vote_ = at::empty({kVoteNumel}, elements.options().dtype(at::kFloat));
      set_vote(false);
    }
    vote(mark.stops);
    record(elements);
  }

  void record(const at::Tensor& elements) override {
    streams_->join();
    elements.copy_(vote_);
    record_stream(vote_);
  }

  void vote(bool stops) override {
    streams_->join();
    if (stops != stops_) {
      set_vote(stops);
    }
    reads_ = stops_;
  }

  MarkSums read(const at::Tensor& sums) override {
    auto result =
        std::exchange(reads_, false) ? decode_marks(sums) : MarkSums();
    result.any_misses = true;
    return result;
  }

 private:
  /// Writes the vote by kernels, because a copy from the host could stall it.
  void set_vote(bool stops) {
    stops_ = stops;
    vote_.zero_();
    vote_.select(0, stops ? 1 : 0).fill_(1);
  }

  at::Tensor vote_;                        // of this rank, as floats
  std::optional<StreamSequence> streams_;  // that use it
  bool stops_ = false;                     // the vote
  bool reads_ = false;                     // the sums of the last `write`
};

}  // namespace

std::unique_ptr<PassMarks> make_pass_marks(c10::DeviceType device) {
  if (device == c10::kCPU) {
    return std::make_unique<HostMarks>();
  }
  return std::make_unique<DeviceMarks>();
}

size_t mix_hash(size_t hash, size_t number) {
  uint64_t mixed = (uint64_t{hash} + number + 1) * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 32)) * 0xd6e8feb86659fd93;
  return static_cast<size_t>(mixed ^ (mixed >> 32));
}

}  // namespace ddp::detail
