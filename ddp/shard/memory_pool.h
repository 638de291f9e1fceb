#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

namespace ddp::detail {

/// Memory of the CPU, in pieces of one size that are used again. With malloc
/// the gaps between freed pieces would make the heap grow.
///
/// Thread contract: `take` from one thread at a time. The tensors may be
/// destroyed on any thread, such as Gloo's after a collective, and may outlive
/// the pool.
class MemoryPool {
 public:
  /// @param make  returns the memory of a new piece: bytes of one dimension.
  explicit MemoryPool(std::function<at::Tensor()> make)
      : make_(std::move(make)) {}

  /// Returns a tensor of one dimension over a piece, with any values.
  at::Tensor take(int64_t numel, const at::TensorOptions& options) {
    at::Tensor memory = free_->pop();
    if (!memory.defined()) {
      memory = make_();
    }
    void* begin = memory.mutable_data_ptr();
    return at::from_blob(
        begin,
        {numel},
        [memory = std::move(memory), free = free_](void*) {
          free->push(memory);
        },
        options);
  }

 private:
  class FreeList {
   public:
    /// Returns an undefined tensor if there is none.
    at::Tensor pop() {
      const std::lock_guard lock(mutex_);
      if (pieces_.empty()) {
        return {};
      }
      auto piece = std::move(pieces_.back());
      pieces_.pop_back();
      return piece;
    }
    void push(const at::Tensor& piece) {
      const std::lock_guard lock(mutex_);
      pieces_.push_back(piece);
    }

   private:
    std::mutex mutex_;
    std::vector<at::Tensor> pieces_;
  };

  const std::function<at::Tensor()> make_;
  const std::shared_ptr<FreeList> free_ = std::make_shared<FreeList>();
};

}  // namespace ddp::detail
