#include "ddp/shared_memory/sum_protocol.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

namespace ddp::detail {
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

std::string text_of(const SumPlace& place) {
  return std::to_string(place.numel) + " elements of " +
         c10::toString(static_cast<c10::ScalarType>(place.dtype));
}

}  // namespace

SumProtocol::SumProtocol(SumBoard board,
                         std::vector<std::byte*> arenas,
                         int rank,
                         OtherHosts others)
    : board_(board),
      arenas_(std::move(arenas)),
      rank_(rank),
      others_(std::move(others)) {}

SumNumber SumProtocol::start(const SumPlace& place) {
  const SumNumber number = started_ + 1;
  board_.place(rank_, number) = place;
  started_ = number;
  publish(board_.started(rank_), number);
  return number;
}

SumNumber SumProtocol::start_copy(SumPlace place,
                                  int source,
                                  at::Tensor tensor) {
  place.source = source;
  if (rank_ != source) {
    copies_[started_ + 1] = std::move(tensor);
  }
  return start(place);
}

template <class CounterOf>
bool SumProtocol::have_all(const CounterOf& counter_of,
                           SumNumber number) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!has_reached(counter_of(rank).value.load(std::memory_order_acquire),
                     number)) {
      return false;
    }
  }
  return true;
}

bool SumProtocol::sum() {
  const auto started = [this](int rank) -> auto& {
    return board_.started(rank);
  };
  if (summed_ == started_ || !have_all(started, summed_ + 1)) {
    return false;
  }
  const SumNumber number = ++summed_;
  auto refusal = refusal_of(number);
  const bool is_refused = refusal.is_elsewhere || !refusal.mismatch.empty();
  if (is_refused) {
    has_mismatch_ = has_mismatch_ || !refusal.mismatch.empty();
    refusals_[number] = std::move(refusal);
  }
  Crossing crossing;
  if (others_.all_reduce) {
    crossing = start_crossing(number);
  } else if (!is_refused && board_.place(rank_, number).source < 0) {
    sum_own_slice(number, slice_of(rank_, rank_, number));
  }
  if (crossing.work || !crossings_.empty()) {
    crossings_.push_back(std::move(crossing));
  } else {
    publish(board_.summed(rank_), ++crossed_);
  }
  return true;
}

/// A host that refuses the sum takes part all the same, so that the other hosts
/// learn of it. After a mismatch, which ends in an error, nothing crosses: it
/// would be paired with another sum.
SumProtocol::Crossing SumProtocol::start_crossing(SumNumber number) {
  const bool is_refused = refusals_.count(number) > 0;
  const auto slice =
      rank_ < slices() ? slice_of(rank_, rank_, number) : at::Tensor();
  if (!slice.defined() || slice.numel() == 0 || has_mismatch_) {
    return {};
  }
  auto memory = at::empty({slice.numel() + 1}, slice.options());
  const auto sum = memory.narrow(0, 0, slice.numel());
  if (is_refused) {
    sum.zero_();
  } else {
    sum_own_slice(number, sum);
  }
  memory[slice.numel()] = is_refused ? 1 : 0;
  return {memory, others_.all_reduce(memory)};
}

bool SumProtocol::cross() {
  if (crossings_.empty() ||
      (crossings_.front().work && !crossings_.front().work->isCompleted())) {
    return false;
  }
  const Crossing crossing = std::move(crossings_.front());
  crossings_.pop_front();
  const SumNumber number = ++crossed_;
  if (crossing.work) {
    crossing.work->wait();  // throws its error
    const int64_t numel = crossing.memory.numel() - 1;
    if (crossing.memory[numel].item<double>() != 0) {
      board_.place(rank_, number).is_refused = 1;
    } else {
      slice_of(rank_, rank_, number).copy_(crossing.memory.narrow(0, 0, numel));
    }
  }
  publish(board_.summed(rank_), number);
  return true;
}

bool SumProtocol::take() {
  const auto summed = [this](int rank) -> auto& {
    return board_.summed(rank);
  };
  if (taken_ == crossed_ || !have_all(summed, taken_ + 1)) {
    return false;
  }
  take_other_slices(taken_ + 1);
  publish(board_.taken(rank_), ++taken_);
  return true;
}

/// The order is sequentially consistent, because a rank that falls asleep
/// counts itself first and then looks at the counter once more.
void SumProtocol::publish(RankCounter& counter, SumNumber number) {
  counter.value.store(number, std::memory_order_seq_cst);
  advanced_ = &counter;
}

bool SumProtocol::is_done(SumNumber number) const {
  return have_all(
      [this](int rank) -> auto& { return board_.taken(rank); }, number);
}

SumProtocol::Awaited SumProtocol::awaited(SumNumber number) const {
  const auto first = [this](auto counter_of, SumNumber wanted) -> Awaited {
    for (int rank = 0; rank < ranks(); ++rank) {
      RankCounter& counter = counter_of(rank);
      if (!has_reached(counter.value.load(std::memory_order_acquire), wanted)) {
        return {&counter, wanted, rank};
      }
    }
    return {&counter_of(rank_), wanted, rank_};  // has arrived meanwhile
  };
  if (!has_reached(crossed_, number) && crossed_ == taken_) {
    if (!crossings_.empty()) {
      return {.work = crossings_.front().work};
    }
    return first(
        [this](int rank) -> auto& { return board_.started(rank); },
        summed_ + 1);
  }
  if (!has_reached(taken_, number)) {
    return first(
        [this](int rank) -> auto& { return board_.summed(rank); }, taken_ + 1);
  }
  return first(
      [this](int rank) -> auto& { return board_.taken(rank); }, number);
}

SumProtocol::Refusal SumProtocol::refusal_of(SumNumber number) const {
  const SumPlace& first = board_.place(0, number);
  Refusal refusal;
  for (int rank = 0; rank < ranks(); ++rank) {
    const SumPlace& place = board_.place(rank, number);
    const bool is_read = place.source < 0 || place.source == rank;
    refusal.is_elsewhere =
        refusal.is_elsewhere || (is_read && place.is_shared == 0);
    if (refusal.mismatch.empty() &&
        (place.numel != first.numel || place.dtype != first.dtype ||
         place.source != first.source)) {
      const std::string brings =
          others_.all_reduce ? " of this host brings " : " brings ";
      refusal.mismatch = "rank 0" + brings + text_of(first) + ", rank " +
                         std::to_string(rank) + brings + text_of(place);
    }
  }
  return refusal;
}

SumProtocol::Refusal SumProtocol::take_refusal(SumNumber number) {
  const auto found = refusals_.find(number);
  if (found == refusals_.end()) {
    return {};
  }
  const Refusal refusal = std::move(found->second);
  refusals_.erase(found);
  return refusal;
}

at::Tensor SumProtocol::tensor_of(int rank, SumNumber number) const {
  const SumPlace& place = board_.place(rank, number);
  return at::from_blob(
      arenas_[static_cast<size_t>(rank)] + place.offset,
      {place.numel},
      at::TensorOptions(static_cast<c10::ScalarType>(place.dtype)));
}

at::Tensor SumProtocol::slice_of(int rank, int slice, SumNumber number) const {
  const SumPlace& place = board_.place(rank, number);
  const int64_t begin = first_of_slice(place, slice, slices());
  const int64_t end = first_of_slice(place, slice + 1, slices());
  return tensor_of(rank, number).narrow(0, begin, end - begin);
}

void SumProtocol::sum_own_slice(SumNumber number, const at::Tensor& to) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks(); ++rank) {
    parts.push_back(slice_of(rank, rank_, number));
  }
  // `to` may be one of the parts.
  at::Tensor result = to;
  if (parts.size() == 1) {
    result.copy_(parts[0]);
    return;
  }
  if (parts.size() == 2) {
    at::add_out(result, parts[0], parts[1]);
    return;
  }
  for (int64_t begin = 0; begin < to.numel(); begin += kBlock) {
    const auto block = [&](const at::Tensor& part) {
      return part.narrow(0, begin, std::min(kBlock, to.numel() - begin));
    };
    auto sum = at::add(block(parts[0]), block(parts[1]));
    for (size_t i = 2; i < parts.size(); ++i) {
      sum.add_(block(parts[i]));
    }
    block(to).copy_(sum);
  }
}

/// Whether a host had to refuse the sum. The ranks that sum slices know it.
bool SumProtocol::is_refused(SumNumber number) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (board_.place(rank, number).is_refused != 0) {
      return true;
    }
  }
  return false;
}

void SumProtocol::take_other_slices(SumNumber number) {
  const auto copy = copies_.extract(number);
  if (is_refused(number)) {
    refusals_[number].is_elsewhere = true;
  }
  if (refusals_.count(number) > 0) {
    return;
  }
  const int source = board_.place(rank_, number).source;
  if (source >= 0) {
    if (source != rank_ && !copy.empty()) {
      at::Tensor(copy.mapped()).copy_(tensor_of(source, number));
    }
    return;
  }
  for (int i = 1; i <= slices(); ++i) {
    const int rank = (rank_ + i) % slices();
    if (rank == rank_) {
      continue;
    }
    const auto slice = slice_of(rank, rank, number);
    if (slice.numel() > 0) {
      slice_of(rank_, rank, number).copy_(slice);
    }
  }
}

}  // namespace ddp::detail
