#pragma once

#include <driver_types.h>

#include <cstdint>

#include "test/fake_gpu/engine/capture.h"

/// The captures of the process, with the rules of CUDA: which call is recorded,
/// and which one is an error. An error makes the captures that it concerns
/// invalid. All functions may be called from any thread.
namespace fake_gpu {

/// The place of an event that was recorded on a capturing stream.
struct CaptureMark {
  uint64_t capture = 0;  // 0: the event was not captured
  Past past;
};

cudaError_t begin_capture(Stream* stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(Stream* stream, Graph* graph);
/// @param id  0 if the stream is not capturing; may be null.
cudaError_t read_capture(Stream* stream,
                         cudaStreamCaptureStatus* status,
                         uint64_t* id);

/// Returns true if operations of the stream are recorded instead of queued.
bool is_capturing(Stream* stream);
/// Records an operation of a capturing stream. Does nothing in an invalid
/// capture.
void record(Stream* stream, Launch launch);
/// Returns the place after all operations recorded on the stream so far.
CaptureMark mark(Stream* stream);
/// Makes a stream wait for an event. Called if the event was captured or the
/// stream is capturing.
cudaError_t wait_for_mark(Stream* stream, const CaptureMark& mark);
/// Returns true if the capturing stream has already waited for the event.
bool has_waited(Stream* stream, const CaptureMark& mark);

/// Checks a call that adds an operation to a stream.
cudaError_t check_enqueue(Stream* stream);
/// Checks a call that waits for a stream or queries it.
cudaError_t check_host_wait(Stream* stream);
/// Same as above, for an event.
cudaError_t check_host_wait(const CaptureMark& mark);
/// Same as above, for a device.
cudaError_t check_host_wait(int device);
/// Checks a call such as cudaMalloc, which the capture modes of the threads
/// forbid or allow.
cudaError_t check_unsafe_call();

/// Sets the capture mode of the calling thread and returns the previous one.
cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode);

}  // namespace fake_gpu
