#include "samples/support/memory_meter.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

namespace samples {

class MemoryMeter::Ledger {
 public:
  explicit Ledger(size_t owners) : live_(owners), peak_(owners) {}

  std::atomic<bool> is_counting{false};

  void clear() {
    const std::lock_guard lock(mutex_);
    blocks_.clear();
    live_.assign(live_.size(), 0);
    peak_ = live_;
  }

  void add(const void* memory, size_t owner, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    forget(memory);  // freed outside of all scopes
    blocks_[memory] = {owner, bytes};
    grow(owner, bytes);
  }

  void remove(const void* memory) {
    const std::lock_guard lock(mutex_);
    forget(memory);
  }

  void move(const void* memory, size_t owner) {
    const std::lock_guard lock(mutex_);
    if (const auto found = blocks_.find(memory); found != blocks_.end()) {
      auto& block = found->second;
      live_[block.owner] -= block.bytes;
      grow(owner, block.bytes);
      block.owner = owner;
    }
  }

  std::vector<int64_t> live() const {
    const std::lock_guard lock(mutex_);
    return live_;
  }

  std::vector<int64_t> peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = live_;
  }

 private:
  struct Block {
    size_t owner;
    int64_t bytes;
  };

  void grow(size_t owner, int64_t bytes) {
    live_[owner] += bytes;
    peak_[owner] = std::max(peak_[owner], live_[owner]);
  }

  void forget(const void* memory) {
    if (const auto found = blocks_.find(memory); found != blocks_.end()) {
      live_[found->second.owner] -= found->second.bytes;
      blocks_.erase(found);
    }
  }

  mutable std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;
  std::vector<int64_t> live_;
  std::vector<int64_t> peak_;
};

/// Receives the reports of LibTorch's allocators for a thread with a scope.
class MemoryMeter::Reporter : public c10::MemoryReportingInfoBase {
 public:
  Reporter(std::shared_ptr<Ledger> ledger, size_t owner)
      : ledger_(std::move(ledger)), owner_(owner) {}

  bool memoryProfilingEnabled() const override { return ledger_->is_counting; }

  void reportMemoryUsage(void* memory,
                         int64_t bytes,
                         size_t /*allocated*/,
                         size_t /*reserved*/,
                         c10::Device /*device*/) override {
    bytes > 0 ? ledger_->add(memory, owner_, bytes) : ledger_->remove(memory);
  }

 private:
  std::shared_ptr<Ledger> ledger_;
  size_t owner_;
};

MemoryMeter::MemoryMeter(size_t owners)
    : ledger_(std::make_shared<Ledger>(owners)) {
  for (size_t owner = 0; owner < owners; ++owner) {
    reporters_.push_back(std::make_shared<Reporter>(ledger_, owner));
  }
}

void MemoryMeter::start() {
  ledger_->clear();
  ledger_->is_counting = true;
}

void MemoryMeter::stop() {
  ledger_->is_counting = false;
}

bool MemoryMeter::is_counting() const {
  return ledger_->is_counting;
}

std::vector<int64_t> MemoryMeter::live() const {
  return ledger_->live();
}

std::vector<int64_t> MemoryMeter::peak() const {
  return ledger_->peak();
}

void MemoryMeter::reset_peak() {
  ledger_->reset_peak();
}

void MemoryMeter::move(const torch::Tensor& tensor, size_t owner) {
  ledger_->move(tensor.storage().data(), owner);
}

MemoryMeter::Scope::Scope(const MemoryMeter& meter, size_t owner)
    : guard_(c10::DebugInfoKind::PROFILER_STATE, meter.reporters_.at(owner)) {}

}  // namespace samples
