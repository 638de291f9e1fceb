#include "test/fake_gpu/engine/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "test/fake_gpu/log.h"
#include "test/fake_gpu/settings.h"

namespace fake_gpu {
namespace {

constexpr size_t kPage = 4096;
constexpr int kUnwritten = 0xff;

size_t whole_pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

/// The blocks of one device, in its own address range.
class DeviceMemory {
 public:
  DeviceMemory(char* begin, size_t capacity, ptrdiff_t distance)
      : next_(begin),
        end_(begin + 4 * capacity),
        capacity_(capacity),
        distance_(distance) {}

  char* allocate(size_t bytes) {
    bytes = whole_pages(bytes == 0 ? 1 : bytes);
    if (bytes > capacity_ - used_) {
      return nullptr;
    }
    char* block = take_spare(bytes);
    if (block == nullptr) {
      block = take_new(bytes);
    }
    if (block == nullptr) {
      return nullptr;
    }
    std::memset(block + distance_, kUnwritten, bytes);
    used_ += bytes;
    blocks_[block] = bytes;
    return block;
  }

  bool free(char* block) {
    const auto place = blocks_.find(block);
    if (place == blocks_.end()) {
      return false;
    }
    used_ -= place->second;
    spare_[place->second].push_back(block);
    blocks_.erase(place);
    return true;
  }

  size_t free_bytes() const { return capacity_ - used_; }

 private:
  char* take_spare(size_t bytes) {
    const auto spare = spare_.find(bytes);
    if (spare == spare_.end() || spare->second.empty()) {
      return nullptr;
    }
    char* block = spare->second.back();
    spare->second.pop_back();
    return block;
  }

  char* take_new(size_t bytes) {
    if (bytes > static_cast<size_t>(end_ - next_)) {
      return nullptr;
    }
    char* block = next_;
    if (::mprotect(block + distance_, bytes, PROT_READ | PROT_WRITE) != 0) {
      return nullptr;
    }
    next_ += bytes;
    return block;
  }

  char* next_;
  char* end_;
  size_t capacity_;
  ptrdiff_t distance_;
  size_t used_ = 0;
  std::map<char*, size_t> blocks_;
  std::map<size_t, std::vector<char*>> spare_;  // freed blocks, by size
};

struct Memory {
  Memory() {
    // Only blocks of equal size are reused, so a device may use more addresses
    // than it has memory.
    const size_t range = 4 * settings().memory_bytes;
    const size_t all = range * static_cast<size_t>(settings().devices);
    void* reserved = ::mmap(nullptr,
                            2 * all + kPage,
                            PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            -1,
                            0);
    if (reserved == MAP_FAILED) {
      fail("cannot reserve addresses for the devices' memory");
    }
    base = static_cast<char*>(reserved);
    distance = static_cast<ptrdiff_t>(all);
    range_bytes = static_cast<ptrdiff_t>(range);
    for (int i = 0; i < settings().devices; ++i) {
      devices.emplace_back(
          base + i * range_bytes, settings().memory_bytes, distance);
    }
  }

  std::mutex mutex;
  char* base;
  ptrdiff_t distance;  // from a device address to the address of its values
  ptrdiff_t range_bytes;
  std::vector<DeviceMemory> devices;
  std::map<const char*, size_t> pinned;
};

Memory& memory() {
  static auto* const instance = new Memory;
  return *instance;
}

/// Allowed access of this thread. Without an operation all devices are allowed.
struct Access {
  int device = -1;
  const std::string* operation = nullptr;
};
thread_local Access access;

}  // namespace

DeviceAccess::DeviceAccess(int device, const std::string& operation) {
  access = {device, &operation};
}

DeviceAccess::~DeviceAccess() {
  access = {};
}

void* allocate_device(int device, size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  return m.devices.at(device).allocate(bytes);
}

bool free_device(void* pointer) {
  const int device = device_of(pointer);
  if (device < 0) {
    return false;
  }
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  return m.devices.at(device).free(static_cast<char*>(pointer));
}

int device_of(const void* pointer) {
  const Memory& m = memory();
  const auto offset =
      reinterpret_cast<intptr_t>(pointer) - reinterpret_cast<intptr_t>(m.base);
  return offset >= 0 && offset < m.distance
             ? static_cast<int>(offset / m.range_bytes)
             : -1;
}

size_t free_bytes(int device) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  return m.devices.at(device).free_bytes();
}

void* host_address(void* pointer) {
  const int device = device_of(pointer);
  if (device >= 0 && access.operation != nullptr && device != access.device) {
    fail(*access.operation + " on a stream of device " +
         std::to_string(access.device) + " touches memory of device " +
         std::to_string(device));
  }
  return any_host_address(pointer);
}

void* any_host_address(void* pointer) {
  return device_of(pointer) < 0
             ? pointer
             : static_cast<char*>(pointer) + memory().distance;
}

void* allocate_pinned(size_t bytes) {
  bytes = whole_pages(bytes == 0 ? 1 : bytes);
  void* pointer = std::aligned_alloc(kPage, bytes);
  if (pointer == nullptr) {
    return nullptr;
  }
  std::memset(pointer, kUnwritten, bytes);
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.pinned[static_cast<const char*>(pointer)] = bytes;
  return pointer;
}

bool free_pinned(void* pointer) {
  Memory& m = memory();
  {
    const std::lock_guard lock(m.mutex);
    if (m.pinned.erase(static_cast<const char*>(pointer)) == 0) {
      return false;
    }
  }
  std::free(pointer);
  return true;
}

bool is_pinned(const void* pointer) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto* address = static_cast<const char*>(pointer);
  auto place = m.pinned.upper_bound(address);
  if (place == m.pinned.begin()) {
    return false;
  }
  --place;
  return address < place->first + place->second;
}

}  // namespace fake_gpu
