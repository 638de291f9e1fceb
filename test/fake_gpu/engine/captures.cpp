#include "test/fake_gpu/engine/captures.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <utility>

namespace fake_gpu {
namespace {

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

/// Use with the lock held.
struct Captures {
  std::mutex mutex;
  std::list<Capture> list;
  uint64_t last_id = 0;
  std::atomic<size_t> count{0};  // readable without the lock

  Capture* of(Stream* stream) {
    for (Capture& capture : list) {
      if (capture.contains(stream)) {
        return &capture;
      }
    }
    return nullptr;
  }
  Capture* of(const CaptureMark& mark) {
    for (Capture& capture : list) {
      if (capture.id == mark.capture) {
        return &capture;
      }
    }
    return nullptr;
  }
  void remove(const Capture* capture) {
    list.remove_if([&](const Capture& item) { return &item == capture; });
    count = list.size();
  }
  template <typename Predicate>
  bool invalidate_if(const Predicate& predicate) {
    bool any = false;
    for (Capture& capture : list) {
      if (predicate(capture)) {
        any = capture.invalid = true;
      }
    }
    return any;
  }
};

Captures& captures() {
  static auto* const instance = new Captures;
  return *instance;
}

/// The legacy stream waits for the blocking streams of its device, and the host
/// cannot wait for an operation that is only recorded.
bool would_wait_for(const Stream& legacy, const Capture& capture) {
  return legacy.kind == Stream::Kind::legacy &&
         capture.contains(legacy.device, Stream::Kind::blocking);
}

bool forbids_unsafe_calls(const Capture& capture) {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) {
    return false;
  }
  return capture.thread == std::this_thread::get_id()
             ? capture.mode != cudaStreamCaptureModeRelaxed
             : capture.mode == cudaStreamCaptureModeGlobal &&
                   mode_of_thread == cudaStreamCaptureModeGlobal;
}

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  if (capture.invalid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  capture.invalid = true;
  return error;
}

/// Returns the error of a use of the legacy stream.
cudaError_t check_legacy(Captures& c, const Stream& stream) {
  return c.invalidate_if([&](const Capture& capture) {
    return would_wait_for(stream, capture);
  })
             ? cudaErrorStreamCaptureImplicit
             : cudaSuccess;
}

cudaError_t check_unsafe_call(Captures& c) {
  return c.invalidate_if(forbids_unsafe_calls)
             ? cudaErrorStreamCaptureUnsupported
             : cudaSuccess;
}

}  // namespace

cudaError_t begin_capture(Stream* stream, cudaStreamCaptureMode mode) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  if (stream->kind == Stream::Kind::legacy) {
    return cudaErrorStreamCaptureUnsupported;
  }
  if (c.of(stream) != nullptr) {
    return cudaErrorIllegalState;
  }
  c.list.emplace_back(++c.last_id, stream, mode);
  c.count = c.list.size();
  return cudaSuccess;
}

cudaError_t end_capture(Stream* stream, Graph* graph) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  Capture* capture = c.of(stream);
  if (capture == nullptr) {
    return cudaErrorIllegalState;
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  if (capture->origin != stream) {
    return invalidate(*capture, cudaErrorStreamCaptureUnmatched);
  }
  const auto result = capture->invalid       ? cudaErrorStreamCaptureInvalidated
                      : capture->is_joined() ? cudaSuccess
                                             : cudaErrorStreamCaptureUnjoined;
  if (result == cudaSuccess) {
    *graph = capture->take_graph();
  }
  c.remove(capture);
  return result;
}

cudaError_t read_capture(Stream* stream,
                         cudaStreamCaptureStatus* status,
                         uint64_t* id) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  const Capture* capture = c.of(stream);
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  if (id != nullptr) {
    *id = capture == nullptr ? 0 : capture->id;
  }
  const bool implicit =
      std::any_of(c.list.begin(), c.list.end(), [&](const Capture& other) {
        return would_wait_for(*stream, other);
      });
  return implicit ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

bool is_capturing(Stream* stream) {
  Captures& c = captures();
  if (c.count == 0) {
    return false;
  }
  const std::lock_guard lock(c.mutex);
  return c.of(stream) != nullptr;
}

void record(Stream* stream, Launch launch) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  Capture* capture = c.of(stream);
  if (capture != nullptr && !capture->invalid) {
    capture->add(stream, std::move(launch));
  }
}

CaptureMark mark(Stream* stream) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  const Capture* capture = c.of(stream);
  return capture == nullptr
             ? CaptureMark()
             : CaptureMark{capture->id, capture->past_of(stream)};
}

cudaError_t wait_for_mark(Stream* stream, const CaptureMark& mark) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  Capture* own = c.of(stream);
  Capture* other = c.of(mark);
  if (other == nullptr) {
    return own == nullptr ? cudaErrorCapturedEvent
                          : invalidate(*own, cudaErrorStreamCaptureIsolation);
  }
  if (stream->kind == Stream::Kind::legacy) {
    return invalidate(*other, cudaErrorStreamCaptureImplicit);
  }
  if (own != nullptr && own != other) {
    own->invalid = true;
    return invalidate(*other, cudaErrorStreamCaptureMerge);
  }
  if (other->invalid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  other->wait(stream, mark.past);
  return cudaSuccess;
}

bool has_waited(Stream* stream, const CaptureMark& mark) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  const Capture* capture = c.of(stream);
  return capture != nullptr && covers(capture->past_of(stream), mark.past);
}

cudaError_t check_enqueue(Stream* stream) {
  Captures& c = captures();
  if (c.count == 0) {
    return cudaSuccess;
  }
  const std::lock_guard lock(c.mutex);
  const Capture* capture = c.of(stream);
  return capture != nullptr && capture->invalid
             ? cudaErrorStreamCaptureInvalidated
             : check_legacy(c, *stream);
}

cudaError_t check_host_wait(Stream* stream) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  if (Capture* capture = c.of(stream)) {
    return invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  }
  const auto error = check_legacy(c, *stream);
  return error != cudaSuccess ? error : check_unsafe_call(c);
}

cudaError_t check_host_wait(const CaptureMark& mark) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  if (mark.capture == 0) {
    return check_unsafe_call(c);
  }
  Capture* capture = c.of(mark);
  return capture == nullptr ? cudaErrorCapturedEvent
                            : invalidate(*capture, cudaErrorCapturedEvent);
}

cudaError_t check_host_wait(int device) {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  return c.invalidate_if(
             [&](const Capture& capture) { return capture.contains(device); })
             ? cudaErrorStreamCaptureUnsupported
             : check_unsafe_call(c);
}

cudaError_t check_unsafe_call() {
  Captures& c = captures();
  const std::lock_guard lock(c.mutex);
  return check_unsafe_call(c);
}

cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode) {
  return std::exchange(mode_of_thread, mode);
}

}  // namespace fake_gpu
