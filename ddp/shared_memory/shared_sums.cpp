#include "ddp/shared_memory/shared_sums.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "ddp/shared_memory/counter_wait.h"

namespace ddp::detail {
namespace {

/// Time after which a waiting rank looks for departures.
constexpr std::chrono::milliseconds kLook{50};

/// A part of a copy that stays in the cache until the other ranks read it.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

std::vector<std::byte*> arenas_of(const SharedMemory& memory, int ranks) {
  std::vector<std::byte*> arenas;
  for (int rank = 0; rank < ranks; ++rank) {
    arenas.push_back(memory.arena(rank));
  }
  return arenas;
}

}  // namespace

SharedSums::SharedSums(std::shared_ptr<SharedMemory> memory,
                       int rank,
                       int ranks,
                       std::function<bool(int rank)> has_left)
    : memory_(std::move(memory)),
      rank_(rank),
      ranks_(ranks),
      has_left_(std::move(has_left)),
      spins_(has_core_for_each(ranks)),
      protocol_(SumBoard(memory_->board()), arenas_of(*memory_, ranks), rank) {}

at::Tensor SharedSums::allocate(int64_t numel,
                                const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  auto memory = memory_->allocate(bytes, rank_);
  if (!memory) {
    return {};
  }
  void* address = memory.get();
  return at::from_blob(
      address, {numel}, [held = std::move(memory)](void*) {}, options);
}

SumNumber SharedSums::start(const at::Tensor& tensor,
                            std::chrono::milliseconds timeout) {
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  make_room(timeout);
  const SumNumber number = protocol_.start(place_of(tensor));
  begin(number, tensor);
  ++working_;
  advance();
  return number;
}

bool SharedSums::finish(SumNumber number, std::chrono::milliseconds timeout) {
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  const bool is_summed = end(number, timeout);
  --working_;
  return is_summed;
}

/// While the others copy a piece, the source writes the next one.
bool SharedSums::copy_from(int source,
                           const at::Tensor& tensor,
                           std::chrono::milliseconds timeout) {
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  const auto bytes = tensor.view({-1}).view(at::kByte);
  ++working_;
  std::deque<SumNumber> numbers;
  bool is_copied = true;
  const auto end_oldest = [&] {
    is_copied = end(numbers.front(), timeout) && is_copied;
    numbers.pop_front();
  };
  for (int64_t offset = 0; offset < bytes.numel() && is_copied;
       offset += kPieceBytes) {
    if (numbers.size() == 2) {
      end_oldest();
    }
    make_room(timeout);
    const auto piece =
        bytes.narrow(0, offset, std::min(kPieceBytes, bytes.numel() - offset));
    auto shared = piece;
    if (source == rank_ && has_pieces()) {
      shared = pieces_.narrow(
          0, offset / kPieceBytes % 2 * kPieceBytes, piece.numel());
      shared.copy_(piece);
    }
    numbers.push_back(protocol_.start_copy(place_of(shared), source, piece));
    begin(numbers.back(), shared);
    advance();
  }
  while (!numbers.empty()) {
    end_oldest();
  }
  --working_;
  return is_copied;
}

bool SharedSums::has_pieces() {
  if (!pieces_.defined()) {
    pieces_ = allocate(2 * kPieceBytes, at::kByte);
  }
  return pieces_.defined();
}

SumPlace SharedSums::place_of(const at::Tensor& tensor) const {
  const auto offset = memory_->offset_of(tensor.data_ptr(), rank_);
  return {offset.value_or(0),
          tensor.numel(),
          static_cast<int32_t>(tensor.scalar_type()),
          offset.has_value()};
}

void SharedSums::make_room(std::chrono::milliseconds timeout) {
  while (!protocol_.has_room()) {
    complete(tensors_.front().first, timeout);
  }
}

/// Keeps the tensor of a sum that has started.
void SharedSums::begin(SumNumber number, const at::Tensor& tensor) {
  wake_sleepers(protocol_.advanced());
  tensors_.emplace_back(number, tensor);
}

/// Returns false if a tensor was elsewhere.
bool SharedSums::end(SumNumber number, std::chrono::milliseconds timeout) {
  complete(number, timeout);
  const auto refusal = protocol_.take_refusal(number);
  if (!refusal.mismatch.empty()) {
    throw std::runtime_error("Expected the same tensors on all ranks, but " +
                             refusal.mismatch);
  }
  return !refusal.is_elsewhere;
}

void SharedSums::advance() {
  while (protocol_.advance()) {
    wake_sleepers(protocol_.advanced());
  }
  while (!tensors_.empty() && protocol_.is_done(tensors_.front().first)) {
    tensors_.pop_front();
  }
}

void SharedSums::complete(SumNumber number, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  advance();
  while (!protocol_.is_done(number)) {
    wait_for_ranks(number, end);
    advance();
  }
}

void SharedSums::wait_for_ranks(SumNumber number,
                                std::chrono::steady_clock::time_point end) {
  const auto awaited = protocol_.awaited(number);
  if (wait_for_counter(*awaited.counter, awaited.number, spins_, kLook)) {
    return;
  }
  if (is_aborted_) {
    throw std::runtime_error("the group was aborted");
  }
  // A rank may do its part and leave.
  if (has_left_(awaited.rank) &&
      !has_reached(awaited.counter->value, awaited.number)) {
    throw std::runtime_error("a rank has left before it had done its part");
  }
  if (std::chrono::steady_clock::now() > end) {
    throw std::runtime_error("Timed out waiting for rank " +
                             std::to_string(awaited.rank));
  }
}

void SharedSums::abort() noexcept {
  is_aborted_ = true;
  const SumBoard board(memory_->board());
  for (int rank = 0; rank < ranks_; ++rank) {
    wake_sleepers(board.started(rank));
    wake_sleepers(board.summed(rank));
    wake_sleepers(board.taken(rank));
  }
}

}  // namespace ddp::detail
