#include "ddp/shared_memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace ddp::detail {
namespace {

/// Address space for all arenas. A process has 120 times as much, so that it
/// can have several models.
constexpr uint64_t kMostBytes = uint64_t{1} << 40;

/// Bytes that one call reserves: a signal makes the kernel give up the whole
/// call.
constexpr uint64_t kReserveBytes = uint64_t{4} << 20;

uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

uint64_t whole_pages(uint64_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

uint64_t arena_bytes_for(int ranks) {
  const uint64_t machine =
      static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes();
  return whole_pages(
      std::min(machine, kMostBytes / static_cast<uint64_t>(ranks)));
}

}  // namespace

FileDescriptor SharedMemory::make_file(int ranks, size_t board_bytes) {
  const uint64_t bytes = whole_pages(board_bytes) +
                         static_cast<uint64_t>(ranks) * arena_bytes_for(ranks);
  struct rlimit limit {};
  check(::getrlimit(RLIMIT_FSIZE, &limit), "getrlimit");
  if (limit.rlim_cur < bytes) {  // else SIGXFSZ would end the process
    throw std::system_error(
        EFBIG, std::generic_category(), "the limit of file sizes");
  }
  FileDescriptor file(
      check(::memfd_create("ddp", MFD_CLOEXEC), "memfd_create"));
  check(::ftruncate(file.get(), static_cast<off_t>(bytes)), "ftruncate");
  return file;
}

SharedMemory::SharedMemory(FileDescriptor file, int ranks, size_t board_bytes)
    : process_(::getpid()),
      file_(std::move(file)),
      board_bytes_(whole_pages(board_bytes)) {
  struct stat status {};
  check(::fstat(file_.get(), &status), "fstat");
  const auto bytes = static_cast<uint64_t>(status.st_size);
  arena_bytes_ = (bytes - board_bytes_) / static_cast<uint64_t>(ranks);
  void* base = ::mmap(nullptr,
                      bytes,
                      PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE,
                      file_.get(),
                      0);
  if (base == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "mmap");
  }
  base_ = static_cast<std::byte*>(base);
  ::madvise(base_, bytes, MADV_DONTFORK);
  ::madvise(base_, bytes, MADV_DONTDUMP);
  used_.resize(static_cast<size_t>(ranks));
}

SharedMemory::~SharedMemory() {
  if (is_mapped()) {  // a child may have other memory there
    ::munmap(base_, board_bytes_ + used_.size() * arena_bytes_);
  }
}

std::byte* SharedMemory::arena(int rank) const {
  return base_ + file_offset(0, rank);
}

uint64_t SharedMemory::file_offset(uint64_t offset, int rank) const {
  return board_bytes_ + static_cast<uint64_t>(rank) * arena_bytes_ + offset;
}

std::optional<uint64_t> SharedMemory::offset_of(const void* address,
                                                int rank) const {
  const auto begin = reinterpret_cast<uintptr_t>(arena(rank));
  const auto place = reinterpret_cast<uintptr_t>(address);
  if (place < begin || place >= begin + arena_bytes_) {
    return std::nullopt;
  }
  return place - begin;
}

std::shared_ptr<std::byte> SharedMemory::allocate(size_t bytes, int rank) {
  const auto offset = allocate_kept(bytes, rank);
  if (!offset) {
    return nullptr;
  }
  const uint64_t size = whole_pages(std::max<uint64_t>(bytes, 1));
  return {arena(rank) + *offset,
          [self = shared_from_this(), offset = *offset, size, rank](
              const std::byte*) { self->give_back(offset, size, rank); }};
}

std::optional<uint64_t> SharedMemory::allocate_kept(size_t bytes, int rank) {
  const uint64_t size = whole_pages(std::max<uint64_t>(bytes, 1));
  const auto offset = take(size, rank);
  if (offset && !reserve(file_offset(*offset, rank), size)) {
    give_back(*offset, size, rank);
    return std::nullopt;
  }
  return offset;
}

std::shared_ptr<std::byte> SharedMemory::map_side_by_side(uint64_t offset,
                                                          uint64_t bytes,
                                                          int rank) {
  const auto map = [](void* at,
                      uint64_t size,
                      int access,
                      int flags,
                      int file,
                      uint64_t begin) {
    void* mapped =
        ::mmap(at, size, access, flags, file, static_cast<off_t>(begin));
    if (mapped == MAP_FAILED) {
      throw std::system_error(errno, std::generic_category(), "mmap");
    }
    return static_cast<std::byte*>(mapped);
  };
  const uint64_t all = bytes * used_.size();
  // Reserves the addresses, over which the parts are mapped.
  std::shared_ptr<std::byte> result(
      map(nullptr,
          all,
          PROT_NONE,
          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
          -1,
          0),
      [all, self = shared_from_this()](std::byte* begin) {
        if (self->is_mapped()) {
          ::munmap(begin, all);
        }
      });
  for (int other = 0; other < ranks(); ++other) {
    map(result.get() + bytes * static_cast<uint64_t>(other),
        bytes,
        other == rank ? PROT_READ | PROT_WRITE : PROT_READ,
        MAP_SHARED | MAP_FIXED,
        file_.get(),
        file_offset(offset, other));
  }
  ::madvise(result.get(), all, MADV_DONTFORK);
  ::madvise(result.get(), all, MADV_DONTDUMP);
  return result;
}

/// Takes the pages now. Where there are none, writing would raise SIGBUS.
bool SharedMemory::reserve(uint64_t begin, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes; done += kReserveBytes) {
    const int result = retry_interrupted([&] {
      return ::fallocate(
          file_.get(),
          0,
          static_cast<off_t>(begin + done),
          static_cast<off_t>(std::min(kReserveBytes, bytes - done)));
    });
    if (result < 0) {
      return false;
    }
  }
  return true;
}

bool SharedMemory::is_mapped() const {
  return ::getpid() == process_;
}

/// Takes the first gap that is large enough. Buckets are few.
std::optional<uint64_t> SharedMemory::take(uint64_t bytes, int rank) {
  const std::lock_guard lock(mutex_);
  auto& used = used_[static_cast<size_t>(rank)];
  uint64_t begin = 0;
  for (const auto& [offset, size] : used) {
    if (offset - begin >= bytes) {
      break;
    }
    begin = offset + size;
  }
  if (arena_bytes_ - begin < bytes) {
    return std::nullopt;
  }
  used.emplace(begin, bytes);
  return begin;
}

void SharedMemory::give_back(uint64_t offset, uint64_t bytes, int rank) {
  if (!is_mapped()) {
    return;  // the parent still uses the memory
  }
  ::fallocate(file_.get(),
              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(file_offset(offset, rank)),
              static_cast<off_t>(bytes));
  const std::lock_guard lock(mutex_);
  used_[static_cast<size_t>(rank)].erase(offset);
}

}  // namespace ddp::detail
