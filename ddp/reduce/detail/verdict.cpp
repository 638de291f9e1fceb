#include "ddp/reduce/detail/verdict.h"

#include <thread>
#include <utility>

#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>

namespace ddp::detail {
namespace {

constexpr int64_t kBits = 16;
constexpr int64_t kStop = 1 + 2 * kBits;  // goes on, stops
constexpr int64_t kReducer = kStop + 2;
constexpr int64_t kReducerBits = 4;
constexpr size_t kMostRows = 64;
constexpr std::chrono::milliseconds kGlance{1};

/// One row for each thing that bit 0 may be: 0, 1, not known.
at::Tensor make_rows(const Stamp& stamp, bool failed, bool stops) {
  constexpr int64_t kRows = 3;
  auto rows = at::zeros({kRows, Verdict::kNumel}, at::kFloat);
  auto* element = rows.mutable_data_ptr<float>();
  for (int64_t row = 0; row < kRows; ++row) {
    *element++ = failed ? 1.0f : 0.0f;
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

Verdict::Verdict(const at::TensorOptions& elements,
                 std::shared_ptr<StopVote> vote)
    : options_(elements), vote_(std::move(vote)) {}

void Verdict::write(const at::Tensor& elements,
                    const Stamp& stamp,
                    bool failed) {
  elements.copy_(row_of(stamp, failed));
}

void Verdict::read(const at::Tensor& elements) {
  if (elements.is_cpu()) {
    look(elements);
    return;
  }
  reads_.read(elements);
  // All ranks are to know of the pass in which all have said it when it ends.
  if (vote_->says()) {
    wait(std::chrono::milliseconds::max());
  }
}

bool Verdict::is_good() {
  while (const auto sums = reads_.take()) {
    look(*sums);
  }
  return good_;
}

bool Verdict::wait(std::chrono::milliseconds patience) {
  if (patience == std::chrono::milliseconds::max()) {
    reads_.wait();
  }
  const auto begin = std::chrono::steady_clock::now();
  while (is_good(), !reads_.empty()) {
    if (std::chrono::steady_clock::now() - begin >= patience) {
      return false;
    }
    std::this_thread::sleep_for(kGlance);
  }
  return true;
}

/// Made once for each stamp: on a GPU making one stalls the host.
const at::Tensor& Verdict::row_of(const Stamp& stamp, bool failed) {
  if (rows_.size() > kMostRows) {
    rows_.clear();
  }
  const uint32_t bits = stamp.knows_others ? stamp.bits & 0xfffeu : 1u << 16;
  const bool stops = vote_->says();
  auto& rows = rows_[bits | (failed ? 1 : 0) | (stops ? 1u << 17 : 0) |
                     (uint32_t{stamp.reducer} << 18)];
  if (rows.empty()) {
    rows = make_rows(stamp, failed, stops).to(options_).unbind();
  }
  return rows[stamp.knows_bit_0 ? stamp.bits & 1 : 2];
}

void Verdict::look(const at::Tensor& host) {
  const auto set = host.ne(0);
  const bool* element = set.const_data_ptr<bool>();
  const bool is_crossed = any_differs(element + kReducer, kReducerBits);
  crossed_ = crossed_ || is_crossed;
  good_ =
      good_ && !element[0] && !any_differs(element + 1, kBits) && !is_crossed;
  const bool goes_on = element[kStop];
  const bool stops = element[kStop + 1];
  vote_->hear(stops, stops && !goes_on);
}

}  // namespace ddp::detail
