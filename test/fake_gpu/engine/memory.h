#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fake_gpu {

/// Device memory is memory of this process that the host cannot access by its
/// device addresses: a device address is reserved without access, and the
/// values are stored at a fixed distance from it. New memory is filled with
/// 0xff, which is NaN. All functions may be called from any thread.

/// Returns null if the device has not enough memory left.
void* allocate_device(int device, size_t bytes);
/// Returns false if nothing was allocated at `pointer`.
bool free_device(void* pointer);
/// Returns the device that owns the memory; -1: host memory.
int device_of(const void* pointer);
size_t free_bytes(int device);

/// Returns the address of the values. Only for running operations, never for
/// calls of the host. Ends the process if a DeviceAccess of this thread forbids
/// the access.
void* host_address(void* pointer);
/// Same as host_address(), for memory of any device. For copies, which the
/// driver also executes between devices.
void* any_host_address(void* pointer);
template <typename T>
T* host_address(T* pointer) {
  return static_cast<T*>(
      host_address(const_cast<void*>(static_cast<const void*>(pointer))));
}

/// While it exists, host_address() on this thread refuses the memory of other
/// devices: no device of the stand-in can access a peer's memory.
class DeviceAccess {
 public:
  /// @param operation  printed when the process ends; must outlive this object.
  DeviceAccess(int device, const std::string& operation);
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// Host memory that copies access when they run (cudaHostAlloc).
void* allocate_pinned(size_t bytes);
bool free_pinned(void* pointer);
bool is_pinned(const void* pointer);

}  // namespace fake_gpu
