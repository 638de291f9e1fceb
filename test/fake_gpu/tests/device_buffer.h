#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace fake_gpu::test {

/// A buffer on the current device.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) {
    cudaMalloc(&data_, bytes);
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  template <typename T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

  template <typename T>
  void write(const std::vector<T>& values) {
    cudaMemcpy(
        data_, values.data(), values.size() * sizeof(T), cudaMemcpyDefault);
  }
  /// Returns the content after all operations queued in blocking streams. Other
  /// streams must be synchronised first.
  template <typename T>
  std::vector<T> read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDefault);
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

/// A stream that does not wait for the default stream.
class NonBlockingStream {
 public:
  NonBlockingStream() {
    cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0);
  }
  ~NonBlockingStream() { cudaStreamDestroy(stream_); }
  NonBlockingStream(const NonBlockingStream&) = delete;
  NonBlockingStream& operator=(const NonBlockingStream&) = delete;

  operator cudaStream_t() const { return stream_; }
  void synchronize() const { cudaStreamSynchronize(stream_); }

  /// Waits for all operations that `other` holds now.
  void wait_for(const NonBlockingStream& other) const {
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, other);
    cudaStreamWaitEvent(stream_, event, 0);
    cudaEventDestroy(event);
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace fake_gpu::test
