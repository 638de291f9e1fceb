#include "ddp/shared_memory/shared_sums.h"

#include <unistd.h>

#include <mutex>
#include <stdexcept>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

namespace ddp::detail {
namespace {

constexpr const char* kStopped =
    "the group was closed, or an earlier sum of this rank failed";

std::vector<std::byte*> arenas_of(const SharedMemory& memory) {
  std::vector<std::byte*> arenas;
  for (int rank = 0; rank < memory.ranks(); ++rank) {
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

}  // namespace

SharedSums::SharedSums(std::shared_ptr<SharedMemory> memory, int rank)
    : memory_(std::move(memory)),
      board_(memory_->board()),
      rank_(rank),
      spins_(::sysconf(_SC_NPROCESSORS_ONLN) >= memory_->ranks()),
      protocol_(board_, arenas_of(*memory_), rank) {}

SharedSums::~SharedSums() {
  SumNumber number = done_;
  for (auto& sum : sums_) {
    if (memory_->is_mapped() && !protocol_.is_done(++number)) {
      keep(std::move(sum.tensor));
    }
  }
  stop();
}

/// Wakes the ranks that may wait for this one. A forked child has no part.
void SharedSums::stop() noexcept {
  if (!memory_->is_mapped() || has_stopped_.exchange(true)) {
    return;
  }
  board_.stop(rank_, done_ + 1);
  for (int rank = 0; rank < memory_->ranks(); ++rank) {
    wake_sleepers(board_.started(rank));
    wake_sleepers(board_.summed(rank));
    wake_sleepers(board_.taken(rank));
  }
}

/// After an exception this rank takes no further part: the program may write
/// into the tensor, which a peer could read as the rest of this sum.
template <class Body>
auto SharedSums::guarded(const Body& body) {
  const c10::NoGradGuard no_grad;
  try {
    if (has_stopped_) {
      throw std::runtime_error(kStopped);
    }
    return body();
  } catch (...) {
    stop();
    throw;
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

bool SharedSums::has(const at::Tensor& tensor) const {
  return tensor.has_storage() && offset_of(tensor);
}

SumNumber SharedSums::start(const at::Tensor& tensor,
                            uint64_t collective,
                            bool is_scattered) {
  return guarded([&] {
    sums_.push_back({tensor, collective, is_scattered});
    advance();
    return done_ + static_cast<SumNumber>(sums_.size());
  });
}

void SharedSums::finish(SumNumber number, std::chrono::milliseconds timeout) {
  guarded([&] {
    complete(number, timeout);
    // A rank that has stopped may have written to a tensor that was read here.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int rank = 0; rank < memory_->ranks(); ++rank) {
      const auto stopped = board_.stopped(rank);
      if (stopped && has_reached(number, *stopped)) {
        throw std::runtime_error("rank " + std::to_string(rank) +
                                 " of the group has left or stopped while its "
                                 "tensors were read");
      }
    }
  });
}

/// `data_ptr()` of a tensor without elements is null.
std::optional<uint64_t> SharedSums::offset_of(const at::Tensor& tensor) const {
  const auto* begin = static_cast<const std::byte*>(tensor.storage().data());
  return memory_->offset_of(begin + tensor.storage_offset() * tensor.itemsize(),
                            rank_);
}

/// Brings the tensors to the board for which there is room, and does the steps
/// that are possible now.
void SharedSums::advance() {
  do {
    for (SumNumber next = protocol_.started() - done_;
         next < sums_.size() && protocol_.has_room();
         ++next) {
      const auto& [tensor, collective, is_scattered] = sums_[next];
      protocol_.start({offset_of(tensor).value(),
                       tensor.numel(),
                       static_cast<int32_t>(tensor.scalar_type()),
                       is_scattered ? 1 : 0,
                       collective});
    }
  } while (protocol_.advance());
}

/// Gives up only after one more try, because a rank may do its part and leave.
void SharedSums::complete(SumNumber number, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::string problem;
  for (advance(); !protocol_.is_done(number); advance()) {
    if (!problem.empty()) {
      throw std::runtime_error(problem);
    }
    const auto awaited = protocol_.awaited(number);
    if (!wait_for_counter(*awaited.counter, awaited.number, spins_)) {
      problem = problem_of(number);
      if (problem.empty() && std::chrono::steady_clock::now() > end) {
        problem = "Timed out waiting for rank " + std::to_string(awaited.rank);
      }
    }
  }
  while (!has_reached(done_, number)) {
    sums_.pop_front();
    ++done_;
  }
}

/// Returns why the sum cannot be completed, or "".
std::string SharedSums::problem_of(SumNumber number) const {
  if (has_stopped_) {
    return kStopped;
  }
  for (int rank = 0; rank < memory_->ranks(); ++rank) {
    if (board_.stopped(rank) && !has_reached(board_.taken(rank), number)) {
      return "rank " + std::to_string(rank) +
             " of the group has left or stopped, or destroyed its model, "
             "before it had done "
             "its part";
    }
  }
  return "";
}

}  // namespace ddp::detail
