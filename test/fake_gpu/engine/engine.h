#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/engine/stream.h"

/// The engine of the stand-in: streams of all devices. One thread of the
/// process runs their operations as late as the mode allows. All functions may
/// be called from any thread, but not from a Step.
namespace fake_gpu {

/// Returns the legacy stream of a device, which is the stream of a null handle.
Stream* default_stream(int device);
Stream* create_stream(int device, Stream::Kind kind);

/// Adds an operation and returns its place. `wanted`, if given, returns true
/// while another process waits for the operation; it must not block. On a
/// capturing stream, records the operation instead: the step runs once in each
/// launch of the graph, and the place is one that is reached already.
Point enqueue(Stream* stream,
              std::string label,
              Step step,
              std::function<bool()> wanted = nullptr);

/// Makes all operations added to `stream` from now on run after `point`.
void enqueue_wait(Stream* stream, const Point& point);

/// Returns the place of the last added operation.
Point last_of(Stream* stream);

/// Returns true if a point is reached. For internal use by the stand-in.
bool is_reached(const Point& point);

/// Same as is_reached(), for queries by the host. A host that queries
/// repeatedly is waiting, so after several negative answers the engine runs the
/// work.
bool query(const Point& point);

/// Blocks until the point is reached or the engine has stopped.
void wait_for(const Point& point);
/// Same as wait_for(), for all streams of a device; -1: of all devices.
void wait_for_device(int device);

/// Changes the mode and the seed from now on.
void reschedule(Mode mode, uint64_t seed);

/// Stops the engine and returns when no operation is running. Called
/// automatically at the end of the process, before the data that operations use
/// are destroyed.
void stop_engine();

}  // namespace fake_gpu

// Function that control.h finds by name.
extern "C" void fake_gpu_schedule(int mode, uint64_t seed);
