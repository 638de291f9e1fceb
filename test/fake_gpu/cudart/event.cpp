#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/cudart/error.h"
#include "test/fake_gpu/cudart/lost_wait.h"
#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/engine.h"

namespace fake_gpu {
namespace {

/// The state captured by one cudaEventRecord.
struct Record {
  CaptureMark mark;  // if the stream was capturing
  Point point;
  // Written by the stream; read after the point is reached.
  std::shared_ptr<Clock::time_point> time;
};

class Event {
 public:
  void record(Stream* stream) {
    if (is_capturing(stream)) {
      const std::lock_guard lock(mutex_);
      record_ = {mark(stream), {}, nullptr};
      return;
    }
    auto time = std::make_shared<Clock::time_point>();
    const Point point = enqueue(stream, "record an event", [time] {
      *time = Clock::now();
      return true;
    });
    const std::lock_guard lock(mutex_);
    record_ = {{}, point, std::move(time)};
  }
  /// Returns the last record. Its stream is null if nothing was recorded yet; a
  /// wait then returns at once.
  Record last() {
    const std::lock_guard lock(mutex_);
    return record_;
  }

 private:
  std::mutex mutex_;
  Record record_;
};

Event* event_of(cudaEvent_t handle) {
  return reinterpret_cast<Event*>(handle);
}

/// False on NCCL's watchdog, which queries events at random moments.
thread_local bool records_events = false;

}  // namespace
}  // namespace fake_gpu

using fake_gpu::count;
using fake_gpu::Counts;
using fake_gpu::event_of;
using fake_gpu::records_events;
using fake_gpu::report;
using fake_gpu::stream_of;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new fake_gpu::Event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto error = report(fake_gpu::check_enqueue(stream_of(stream)));
  if (error == cudaSuccess) {
    records_events = true;
    count(&Counts::event_records);
    event_of(event)->record(stream_of(stream));
  }
  return error;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event,
                                     cudaStream_t stream,
                                     unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto record = event_of(event)->last();
  const auto error = report(fake_gpu::check_host_wait(record.mark));
  if (error != cudaSuccess) {
    return error;
  }
  if (records_events) {
    count(&Counts::event_queries);
  }
  return record.point.stream == nullptr || fake_gpu::query(record.point)
             ? cudaSuccess
             : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const auto record = event_of(event)->last();
  const auto error = report(fake_gpu::check_host_wait(record.mark));
  if (error != cudaSuccess) {
    return error;
  }
  count(&Counts::event_synchronizes);
  if (record.point.stream != nullptr) {
    fake_gpu::wait_for(record.point);
  }
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream,
                                cudaEvent_t event,
                                unsigned) {
  auto* waiter = stream_of(stream);
  const auto error = report(fake_gpu::check_enqueue(waiter));
  if (error != cudaSuccess) {
    return error;
  }
  count(&Counts::event_waits);
  const auto record = event_of(event)->last();
  if (fake_gpu::loses(waiter, record.point, record.mark)) {
    return cudaSuccess;
  }
  const bool was_recorded = record.point.stream != nullptr;
  if (record.mark.capture != 0 ||
      (was_recorded && fake_gpu::is_capturing(waiter))) {
    return report(fake_gpu::wait_for_mark(waiter, record.mark));
  }
  fake_gpu::enqueue_wait(waiter, record.point);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds,
                                 cudaEvent_t begin,
                                 cudaEvent_t end) {
  const auto first = event_of(begin)->last();
  const auto second = event_of(end)->last();
  if (first.point.stream == nullptr || second.point.stream == nullptr) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (!fake_gpu::query(first.point) || !fake_gpu::query(second.point)) {
    return cudaErrorNotReady;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(*second.time - *first.time)
          .count();
  return cudaSuccess;
}

}  // extern "C"
