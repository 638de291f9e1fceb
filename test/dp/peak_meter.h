#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace dp::test {

/// Measures the peak of CPU memory above its value at construction, on this
/// thread and on threads that take over its state.
class PeakMeter {
 public:
  PeakMeter() : meter_(std::make_shared<Meter>()), guard_(kind(), meter_) {}
  int64_t peak() const { return meter_->peak; }

 private:
  static c10::DebugInfoKind kind() {
    return c10::DebugInfoKind::PROFILER_STATE;
  }

  struct Meter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(
        void*, int64_t size, size_t, size_t, c10::Device) override {
      live += size;
      peak = std::max<int64_t>(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::atomic<int64_t> live{0};
    std::atomic<int64_t> peak{0};
  };

  std::shared_ptr<Meter> meter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace dp::test
