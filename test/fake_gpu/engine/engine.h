#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/engine/stream.h"

/// The stand-in's "GPU": streams of all devices, whose operations one thread of
/// the process runs, as late as the mode allows. All functions may be called
/// by any thread, but not by a Step.
namespace fake_gpu {

/// The legacy stream of a device, which a null handle names.
Stream* default_stream(int device);
Stream* create_stream(int device, Stream::Kind kind);

/// Adds an operation and returns its place. `wanted`, if there is one, says
/// whether another process waits for it; it must not block.
Point enqueue(Stream* stream,
              std::string label,
              Step step,
              std::function<bool()> wanted = nullptr);

/// What is added to `stream` from now on runs after `point`.
void enqueue_wait(Stream* stream, const Point& point);

/// The place of the operation added last.
Point last_of(Stream* stream);

/// Whether a point is reached: for the stand-in's own use.
bool is_reached(const Point& point);

/// The same for the host: one that asks again and again is waiting, so after a
/// few times the answer no also starts the work.
bool query(const Point& point);

/// Returns when the point is reached, or the engine has stopped.
void wait_for(const Point& point);
/// For all streams of a device; -1: of all devices.
void wait_for_device(int device);

/// From now on by this mode and these random numbers.
void reschedule(Mode mode, uint64_t seed);

/// Returns when no operation runs; none will any more. The end of the process
/// calls it by itself, before what operations use is destroyed.
void stop_engine();

}  // namespace fake_gpu

// What control.h looks for by name.
extern "C" void fake_gpu_schedule(int mode, uint64_t seed);
