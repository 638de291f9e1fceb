#include "ddp/shard/construction_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <system_error>

#include <ATen/ops/empty_like.h>
#include <c10/core/Allocator.h>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {
namespace {

constexpr size_t kLeastBytes = size_t{1} << 20;
constexpr size_t kSharedBytes = size_t{4} << 20;

thread_local int scopes = 0;

/// Maps the same memory repeatedly, at adjacent addresses.
class EmptyAllocator : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    if (scopes == 0 || bytes < kLeastBytes) {
      return inner->allocate(bytes);
    }
    void* begin =
        map(nullptr, bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    for (size_t done = 0; done < bytes; done += kSharedBytes) {
      map(static_cast<std::byte*>(begin) + done,
          std::min(kSharedBytes, bytes - done),
          MAP_SHARED | MAP_FIXED,
          file().get());
    }
    const std::lock_guard lock(mutex_);
    sizes_[begin] = bytes;
    return {begin, begin, &EmptyAllocator::release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return inner->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  std::map<void*, size_t> sizes() {
    const std::lock_guard lock(mutex_);
    return sizes_;
  }

  c10::Allocator* inner = nullptr;

 private:
  static void release(void* begin);

  static void* map(void* at, size_t bytes, int flags, int file) {
    void* mapped = ::mmap(at, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    if (mapped == MAP_FAILED) {
      throw std::system_error(errno, std::generic_category(), "mmap");
    }
    return mapped;
  }

  static const FileDescriptor& file() {
    static const auto* made = [] {
      auto* file = new FileDescriptor(check(
          ::memfd_create("ddp construction", MFD_CLOEXEC), "memfd_create"));
      check(::ftruncate(file->get(), kSharedBytes), "ftruncate");
      return file;
    }();
    return *made;
  }

  std::mutex mutex_;
  std::map<void*, size_t> sizes_;  // by address
};

EmptyAllocator& allocator() {
  static auto* made = new EmptyAllocator();
  return *made;
}

void EmptyAllocator::release(void* begin) {
  auto& self = allocator();
  const std::lock_guard lock(self.mutex_);
  const auto found = self.sizes_.find(begin);
  ::munmap(begin, found->second);
  self.sizes_.erase(found);
}

/// Guards the number of scopes of all threads.
std::mutex scopes_mutex;
int all_scopes = 0;

}  // namespace

ConstructionMemory::ConstructionMemory() {
  const std::lock_guard lock(scopes_mutex);
  if (all_scopes++ == 0) {
    allocator().inner = c10::GetAllocator(c10::kCPU);
    c10::SetAllocator(c10::kCPU, &allocator());
  }
  ++scopes;
}

ConstructionMemory::~ConstructionMemory() {
  const std::lock_guard lock(scopes_mutex);
  --scopes;
  if (--all_scopes == 0) {
    c10::SetAllocator(c10::kCPU, allocator().inner);
  }
}

std::vector<size_t> ConstructionMemory::other_sizes(
    const std::vector<at::Tensor>& known) {
  auto sizes = allocator().sizes();
  for (const auto& tensor : known) {
    sizes.erase(tensor.storage()
                    .unsafeGetStorageImpl()
                    ->_mutable_data_ptr_no_checks()
                    .get());
  }
  std::vector<size_t> others;
  for (const auto& [begin, bytes] : sizes) {
    others.push_back(bytes);
  }
  return others;
}

void ConstructionMemory::give_memory(const std::vector<at::Tensor>& tensors) {
  const auto sizes = allocator().sizes();
  for (const at::Tensor& tensor : tensors) {
    if (sizes.count(tensor.storage()
                        .unsafeGetStorageImpl()
                        ->_mutable_data_ptr_no_checks()
                        .get()) > 0) {
      tensor.set_data(at::empty_like(tensor));
    }
  }
}

}  // namespace ddp::detail
