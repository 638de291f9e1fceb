#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fake_gpu {

/// Device memory lies in this process, but under addresses that the host may
/// not touch: a device address is reserved without access, what is stored lies
/// a fixed distance further on. New memory is filled with 0xff, which is NaN.
/// All functions may be called by any thread.

/// Null when the device has not so much left.
void* allocate_device(int device, size_t bytes);
/// False when nothing was allocated there.
bool free_device(void* pointer);
/// The device whose memory this is; -1: host memory.
int device_of(const void* pointer);
size_t free_bytes(int device);

/// Where the values lie: for operations that run, never for the host's calls.
/// Ends the process where a DeviceAccess of this thread does not allow it.
void* host_address(void* pointer);
/// The same for any device's memory: of copies, which the driver carries out
/// between devices, too.
void* any_host_address(void* pointer);
template <typename T>
T* host_address(T* pointer) {
  return static_cast<T*>(
      host_address(const_cast<void*>(static_cast<const void*>(pointer))));
}

/// While it lives, host_address() on this thread refuses the memory of other
/// devices: no device of the stand-in can access a peer's.
class DeviceAccess {
 public:
  /// @param operation  named when the process ends; outlives this.
  DeviceAccess(int device, const std::string& operation);
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// Memory of the host that copies read and write late (cudaHostAlloc).
void* allocate_pinned(size_t bytes);
bool free_pinned(void* pointer);
bool is_pinned(const void* pointer);

}  // namespace fake_gpu
