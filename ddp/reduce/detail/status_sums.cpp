#include "ddp/reduce/detail/status_sums.h"

#include <thread>
#include <utility>

#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>

#include "ddp/tensors/keep_until_read.h"

namespace ddp::detail {
namespace {

constexpr int64_t kBits = 16;
constexpr int64_t kStop = 1 + 2 * kBits;  // pair: continue, stop
constexpr int64_t kReducer = kStop + 2;
constexpr int64_t kReducerBits = 4;
constexpr size_t kMaxRows = 64;
constexpr std::chrono::milliseconds kSumsPollInterval{1};

/// One row for each state of bit 0: 0, 1, unknown.
at::Tensor encode(const Stamp& stamp, bool has_failed, bool stops) {
  constexpr int64_t kRows = 3;
  auto rows = at::zeros({kRows, StatusSums::kNumel}, at::kFloat);
  auto* element = rows.mutable_data_ptr<float>();
  for (int64_t row = 0; row < kRows; ++row) {
    *element++ = has_failed ? 1.0f : 0.0f;
    for (int64_t bit = 0; bit < kBits; ++bit, element += 2) {
      const auto is_set = bit == 0 ? row : (stamp.bits >> bit) & 1;
      const bool is_known = bit == 0 ? row < 2 : stamp.knows_others;
      if (is_known) {
        element[is_set] = 1;
      }
    }
    element[stops ? 1 : 0] = 1;
    element += 2;
    for (int64_t bit = 0; bit < kReducerBits; ++bit, element += 2) {
      element[(stamp.reducer >> bit) & 1] = 1;
    }
  }
  return rows;
}

bool any_differs(const bool* element, int64_t bits) {
  bool differs = false;
  for (int64_t bit = 0; bit < bits; ++bit, element += 2) {
    differs |= element[0] && element[1];
  }
  return differs;
}

}  // namespace

StatusSums::StatusSums(c10::Device device, std::shared_ptr<StopVote> vote)
    : device_(device), vote_(std::move(vote)) {}

void StatusSums::write(const at::Tensor& elements,
                       const Stamp& stamp,
                       bool has_failed) {
  const auto& row = encoded(stamp, has_failed);
  elements.copy_(row);
  // The cached row may have been made on another stream.
  keep_until_read(row);
}

void StatusSums::read(const at::Tensor& elements) {
  if (elements.is_cpu()) {
    decode(elements);
    return;
  }
  copies_.enqueue(elements);
  // Every rank has to know at the end of the pass that all ranks voted in it.
  if (vote_->says()) {
    wait(std::chrono::milliseconds::max());
  }
}

bool StatusSums::all_agree() {
  while (const auto sums = copies_.pop_arrived()) {
    decode(*sums);
  }
  return all_agree_;
}

bool StatusSums::wait(std::chrono::milliseconds patience) {
  if (patience == std::chrono::milliseconds::max()) {
    copies_.wait();
  }
  const auto begin = std::chrono::steady_clock::now();
  while (all_agree(), !copies_.empty()) {
    if (std::chrono::steady_clock::now() - begin >= patience) {
      return false;
    }
    std::this_thread::sleep_for(kSumsPollInterval);
  }
  return true;
}

/// Rows are cached by stamp, because moving new ones to a GPU stalls the host.
const at::Tensor& StatusSums::encoded(const Stamp& stamp, bool has_failed) {
  if (rows_.size() > kMaxRows) {
    rows_.clear();
  }
  const uint32_t bits = stamp.knows_others ? stamp.bits & 0xfffeu : 1u << 16;
  const bool stops = vote_->says();
  auto& rows = rows_[bits | (has_failed ? 1 : 0) | (stops ? 1u << 17 : 0) |
                     (uint32_t{stamp.reducer} << 18)];
  if (rows.empty()) {
    rows = encode(stamp, has_failed, stops).to(device_).unbind();
  }
  return rows[stamp.knows_bit_0 ? stamp.bits & 1 : 2];
}

void StatusSums::decode(const at::Tensor& host) {
  const auto nonzero = host.ne(0);
  const bool* element = nonzero.const_data_ptr<bool>();
  const bool crosses = any_differs(element + kReducer, kReducerBits);
  met_other_reducer_ = met_other_reducer_ || crosses;
  all_agree_ =
      all_agree_ && !element[0] && !any_differs(element + 1, kBits) && !crosses;
  const bool any_continues = element[kStop];
  const bool any_stops = element[kStop + 1];
  vote_->hear(any_stops, any_stops && !any_continues);
}

}  // namespace ddp::detail
