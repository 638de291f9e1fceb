#include "ddp/shared_memory/shared_sums.h"

#include <stdexcept>
#include <string>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "ddp/shared_memory/counter_wait.h"

namespace ddp::detail {
namespace {

/// Time after which a waiting rank looks for departures.
constexpr std::chrono::milliseconds kLook{50};

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
  if (!protocol_.has_room()) {
    complete(tensors_.front().first, timeout);
  }
  const auto offset = memory_->offset_of(tensor.data_ptr(), rank_);
  const SumPlace place{offset.value_or(0),
                       tensor.numel(),
                       static_cast<int32_t>(tensor.scalar_type()),
                       offset.has_value()};
  const SumNumber number = protocol_.start(place);
  wake_sleepers(protocol_.advanced());
  tensors_.emplace_back(number, tensor);
  ++working_;
  advance();
  return number;
}

bool SharedSums::finish(SumNumber number, std::chrono::milliseconds timeout) {
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  complete(number, timeout);
  --working_;
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
