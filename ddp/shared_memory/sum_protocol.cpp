#include "ddp/shared_memory/sum_protocol.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

namespace ddp::detail {
namespace {

/// A futex call of another process returns after 30 to 50 us.
constexpr std::chrono::microseconds kSpin{40};

constexpr timespec kPatience{0, 50'000'000};

void call_futex(RankCounter& counter,
                int operation,
                uint32_t value,
                const timespec* limit) {
  static_assert(sizeof(counter.value) == sizeof(uint32_t));
  ::syscall(SYS_futex, &counter.value, operation, value, limit, nullptr, 0);
}

}  // namespace

bool wait_for_counter(RankCounter& counter, SumNumber number, bool spins) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (spins && std::chrono::steady_clock::now() < end) {
    if (has_reached(counter, number)) {
      return true;
    }
  }
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const SumNumber seen = counter.value.load(std::memory_order_seq_cst);
  if (!has_reached(seen, number)) {
    call_futex(counter, FUTEX_WAIT, seen, &kPatience);
  }
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return has_reached(counter, number);
}

void wake_sleepers(RankCounter& counter) {
  if (counter.sleepers.load(std::memory_order_seq_cst) > 0) {
    call_futex(counter, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

/// The order is sequentially consistent, because a rank that falls asleep
/// counts itself first and then looks at the counter once more.
void advance_counter(RankCounter& counter, SumNumber number) {
  counter.value.store(number, std::memory_order_seq_cst);
  wake_sleepers(counter);
}

namespace {

/// Slices begin at cache lines, so that two ranks never write to one line.
constexpr int64_t kLineBytes = 64;

/// Elements that are summed at once, so that the partial sum stays in the
/// cache.
constexpr int64_t kBlock = 16'384;

int64_t first_of_slice(const SumPlace& place, int slice, int slices) {
  const auto dtype = static_cast<c10::ScalarType>(place.dtype);
  const int64_t line =
      kLineBytes / static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t lines = (place.numel + line - 1) / line;
  return std::min(place.numel, lines * slice / slices * line);
}

std::string text_of(int rank, const SumPlace& place) {
  return "rank " + std::to_string(rank) + " brings " +
         std::to_string(place.numel) + " elements of " +
         c10::toString(static_cast<c10::ScalarType>(place.dtype));
}

}  // namespace

SumProtocol::SumProtocol(SumBoard board,
                         std::vector<std::byte*> arenas,
                         int rank)
    : board_(board), arenas_(std::move(arenas)), rank_(rank) {}

SumNumber SumProtocol::start(const SumPlace& place) {
  board_.place(rank_, started_ + 1) = place;
  advance_counter(board_.started(rank_), ++started_);
  return started_;
}

/// Returns the counter of the first rank that has not reached the number, or a
/// counter of rank -1.
SumProtocol::Awaited SumProtocol::first_without(CounterOf counter_of,
                                                SumNumber number) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    RankCounter& counter = (board_.*counter_of)(rank);
    if (!has_reached(counter, number)) {
      return {&counter, number, rank};
    }
  }
  return {&(board_.*counter_of)(rank_), number, -1};
}

bool SumProtocol::sum() {
  if (summed_ == started_ ||
      first_without(&SumBoard::started, summed_ + 1).rank >= 0) {
    return false;
  }
  check_alike(summed_ + 1);
  sum_own_slice(summed_ + 1);
  advance_counter(board_.summed(rank_), ++summed_);
  return true;
}

bool SumProtocol::take() {
  if (taken_ == summed_ ||
      first_without(&SumBoard::summed, taken_ + 1).rank >= 0) {
    return false;
  }
  if (board_.place(rank_, taken_ + 1).is_scattered == 0) {
    take_other_slices(taken_ + 1);
  }
  advance_counter(board_.taken(rank_), ++taken_);
  return true;
}

bool SumProtocol::is_done(SumNumber number) const {
  return first_without(&SumBoard::taken, number).rank < 0;
}

SumProtocol::Awaited SumProtocol::awaited(SumNumber number) const {
  if (!has_reached(taken_, number) && taken_ != started_) {
    return summed_ == taken_ ? first_without(&SumBoard::started, summed_ + 1)
                             : first_without(&SumBoard::summed, taken_ + 1);
  }
  return first_without(&SumBoard::taken,
                       has_reached(started_, number)
                           ? number
                           : started_ + 1 - SumBoard::kPlaces);
}

void SumProtocol::check_alike(SumNumber number) const {
  const SumPlace& first = board_.place(0, number);
  for (int rank = 0; rank < ranks(); ++rank) {
    const SumPlace& place = board_.place(rank, number);
    if (place.collective != first.collective) {
      throw std::runtime_error(
          "All ranks of a group must make the same calls in the same order, "
          "but a sum of gradients is collective " +
          std::to_string(first.collective) + " of rank 0 and " +
          std::to_string(place.collective) + " of rank " +
          std::to_string(rank));
    }
    if (place.numel != first.numel || place.dtype != first.dtype) {
      throw std::runtime_error("Expected the same tensors on all ranks, but " +
                               text_of(0, first) + ", " + text_of(rank, place));
    }
  }
}

at::Tensor SumProtocol::slice_of(int rank, int slice, SumNumber number) const {
  const SumPlace& place = board_.place(rank, number);
  const int64_t begin = first_of_slice(place, slice, ranks());
  const int64_t end = first_of_slice(place, slice + 1, ranks());
  const auto tensor = at::from_blob(
      arenas_[static_cast<size_t>(rank)] + place.offset,
      {place.numel},
      at::TensorOptions(static_cast<c10::ScalarType>(place.dtype)));
  return tensor.narrow(0, begin, end - begin);
}

void SumProtocol::sum_own_slice(SumNumber number) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks(); ++rank) {
    parts.push_back(slice_of(rank, rank_, number));
  }
  at::Tensor& own = parts[static_cast<size_t>(rank_)];
  if (parts.size() == 2) {
    at::add_out(own, parts[0], parts[1]);
    return;
  }
  for (int64_t begin = 0; begin < own.numel(); begin += kBlock) {
    const auto block = [&](const at::Tensor& part) {
      return part.narrow(0, begin, std::min(kBlock, own.numel() - begin));
    };
    auto sum = at::add(block(parts[0]), block(parts[1]));
    for (size_t i = 2; i < parts.size(); ++i) {
      sum.add_(block(parts[i]));
    }
    block(own).copy_(sum);
  }
}

void SumProtocol::take_other_slices(SumNumber number) {
  for (int i = 1; i < ranks(); ++i) {
    const int rank = (rank_ + i) % ranks();
    const auto slice = slice_of(rank, rank, number);
    if (slice.numel() > 0) {
      slice_of(rank_, rank, number).copy_(slice);
    }
  }
}

}  // namespace ddp::detail
