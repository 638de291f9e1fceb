#include "ddp/shared_memory/shared_sums.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "ddp/shared_memory/counter_wait.h"

namespace ddp::detail {
namespace {

/// Time after which a waiting rank looks for departures.
constexpr std::chrono::milliseconds kLook{50};

/// The same while the other hosts work on a slice; the next slice may become
/// ready meanwhile.
constexpr std::chrono::milliseconds kLookAcross{10};

/// A part of a copy that stays in the cache until the other ranks read it.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

std::vector<std::byte*> arenas_of(const SharedMemory& memory, int ranks) {
  std::vector<std::byte*> arenas;
  for (int rank = 0; rank < ranks; ++rank) {
    arenas.push_back(memory.arena(rank));
  }
  return arenas;
}

/// Keeps the memory of a tensor until the process ends.
void keep(at::Tensor tensor) {
  static std::mutex mutex;
  static auto* tensors = new std::vector<at::Tensor>();
  const std::lock_guard lock(mutex);
  tensors->push_back(std::move(tensor));
}

/// Returns whether the work has completed.
/// @throws its error.
bool completes(c10d::Work& work, std::chrono::milliseconds patience) {
  try {
    work.wait(patience);
  } catch (const std::exception&) {
    if (!work.isCompleted()) {
      return false;
    }
    work.wait();  // the error may be a time-out just before the end
  }
  return true;
}

}  // namespace

SharedSums::SharedSums(std::shared_ptr<SharedMemory> memory,
                       std::vector<int> ranks,
                       int rank,
                       std::function<bool(int rank)> has_left,
                       const OtherHosts& others)
    : memory_(std::move(memory)),
      board_(memory_->board()),
      ranks_(std::move(ranks)),
      rank_(rank),
      stop_others_(others.stop),
      has_left_(std::move(has_left)),
      spins_(has_core_for_each(count())),
      protocol_(board_, arenas_of(*memory_, count()), rank, others) {}

SharedSums::~SharedSums() {
  for (auto& [number, tensor] : tensors_) {
    if (memory_->is_mapped() && !protocol_.is_done(number)) {
      keep(std::move(tensor));
    }
  }
  if (memory_->is_mapped() && !has_stopped_) {
    tell_end(SumBoard::closed);
  }
}

/// After an exception this rank takes no further part: the program may write
/// into the tensor, which a peer could read as the rest of this sum.
template <class Body>
auto SharedSums::guarded(const Body& body) {
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  if (has_stopped_) {
    throw std::runtime_error(is_aborted_
                                 ? "the group was aborted"
                                 : "an earlier sum or copy of this group "
                                   "failed");
  }
  try {
    return body();
  } catch (...) {
    protocol_.stop();
    stop();
    throw;
  }
}

void SharedSums::stop() noexcept {
  const bool is_first = !has_stopped_.exchange(true);
  tell_end(SumBoard::failed);
  if (is_first && stop_others_) {
    stop_others_();
  }
}

/// Wakes the ranks that may wait for this one.
void SharedSums::tell_end(SumBoard::End end) noexcept {
  board_.has_stopped(rank_).store(end, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int rank = 0; rank < count(); ++rank) {
    wake_sleepers(board_.started(rank));
    wake_sleepers(board_.summed(rank));
    wake_sleepers(board_.taken(rank));
  }
}

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
  return guarded([&] {
    make_room(timeout);
    const SumNumber number = protocol_.start(place_of(tensor));
    begin(number, tensor);
    ++working_;
    advance();
    return number;
  });
}

bool SharedSums::finish(SumNumber number, std::chrono::milliseconds timeout) {
  return guarded([&] {
    const bool is_summed = end(number, timeout);
    --working_;
    return is_summed;
  });
}

bool SharedSums::copy_from(int source,
                           const at::Tensor& tensor,
                           std::chrono::milliseconds timeout) {
  return guarded([&] {
    ++working_;
    // Autograd does not see the copy, as with a collective.
    const bool is_copied = copy_pieces_from(
        source, tensor.variable_data().view({-1}).view(at::kByte), timeout);
    --working_;
    return is_copied;
  });
}

/// While the others copy a piece, the source writes the next one.
bool SharedSums::copy_pieces_from(int source,
                                  const at::Tensor& bytes,
                                  std::chrono::milliseconds timeout) {
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
          offset.has_value() || tensor.numel() == 0};
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
  // A rank that has stopped may have written to a tensor that was read here.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int rank = 0; rank < count(); ++rank) {
    if (board_.has_stopped(rank).load(std::memory_order_seq_cst) ==
        SumBoard::failed) {
      throw std::runtime_error("rank " + std::to_string(group_rank(rank)) +
                               " of the group has left or stopped while its "
                               "tensors were read");
    }
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
  if (awaited.work
          ? completes(*awaited.work, kLookAcross)
          : wait_for_counter(*awaited.counter, awaited.number, spins_, kLook)) {
    return;
  }
  if (is_aborted_) {
    throw std::runtime_error("the group was aborted");
  }
  for (int rank = 0; rank < count(); ++rank) {
    if (rank != rank_ && is_missing(rank, number)) {
      throw std::runtime_error("rank " + std::to_string(group_rank(rank)) +
                               " of the group has left or stopped before it "
                               "had done its part");
    }
  }
  if (std::chrono::steady_clock::now() > end) {
    throw std::runtime_error(
        "Timed out waiting for " +
        (awaited.work ? "the ranks of other hosts"
                      : "rank " + std::to_string(group_rank(awaited.rank))));
  }
}

/// Whether the rank will not do its part of the sum. A rank may do its part and
/// leave, so the counter is read last.
bool SharedSums::is_missing(int rank, SumNumber number) const {
  const bool has_gone =
      board_.has_stopped(rank).load(std::memory_order_seq_cst) != 0 ||
      has_left_(group_rank(rank)) || memory_->has_lost(rank);
  return has_gone && !has_reached(board_.taken(rank).value, number);
}

void SharedSums::abort() noexcept {
  is_aborted_ = true;
  if (memory_->is_mapped()) {  // not in a forked child
    stop();
  }
}

}  // namespace ddp::detail
