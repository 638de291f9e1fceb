#include "ddp/shared_memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>

namespace ddp::detail {
namespace {

/// Address space for all arenas. A process has 30 times as much, so that it can
/// have several groups.
constexpr uint64_t kMostBytes = uint64_t{1} << 42;

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

/// A lock of the byte that stands for a rank.
struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
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
  FileDescriptor file(check(
      ::memfd_create("ddp", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create"));
  check(::ftruncate(file.get(), static_cast<off_t>(bytes)), "ftruncate");
  check(::fcntl(
            file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
        "F_ADD_SEALS");
  return file;
}

SharedMemory::SharedMemory(FileDescriptor file, int ranks, size_t board_bytes)
    : process_(::getpid()),
      file_(std::move(file)),
      board_bytes_(whole_pages(board_bytes)) {
  struct stat status {};
  check(::fstat(file_.get(), &status), "fstat");
  const auto bytes = static_cast<uint64_t>(status.st_size);
  const int seals = check(::fcntl(file_.get(), F_GET_SEALS), "F_GET_SEALS");
  arena_bytes_ = (std::max(bytes, board_bytes_) - board_bytes_) /
                 static_cast<uint64_t>(ranks);
  if (arena_bytes_ == 0 || arena_bytes_ % page_bytes() != 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    throw std::system_error(
        EINVAL, std::generic_category(), "the file of another program");
  }
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
  holders_.resize(static_cast<size_t>(ranks));
  free_.assign(static_cast<size_t>(ranks), {{0, arena_bytes_}});
}

SharedMemory::~SharedMemory() {
  if (is_mapped()) {  // a child may have other memory there
    ::munmap(base_, board_bytes_ + free_.size() * arena_bytes_);
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
  const uint64_t size = whole_pages(std::max<uint64_t>(bytes, 1));
  const auto offset = take(size, rank);
  if (!offset) {
    return nullptr;
  }
  if (!reserve(file_offset(*offset, rank), size)) {
    give_back(*offset, size, rank);
    return nullptr;
  }
  return {arena(rank) + *offset,
          [self = shared_from_this(), offset = *offset, size, rank](
              const std::byte*) { self->give_back(offset, size, rank); }};
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

/// The kernel releases the lock with the process, and a forked child does not
/// have it.
void SharedMemory::hold(int rank) {
  auto lock = lock_of(rank);
  check(::fcntl(file_.get(), F_SETLK, &lock), "F_SETLK");
}

bool SharedMemory::is_held(int rank) const {
  auto lock = lock_of(rank);
  return ::fcntl(file_.get(), F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void SharedMemory::note_holders() {
  for (size_t rank = 0; rank < holders_.size(); ++rank) {
    holders_[rank] = is_held(static_cast<int>(rank));
  }
}

bool SharedMemory::has_lost(int rank) const {
  return holders_[static_cast<size_t>(rank)] && !is_held(rank);
}

/// Takes the first gap that is large enough. Buckets are few.
std::optional<uint64_t> SharedMemory::take(uint64_t bytes, int rank) {
  const std::lock_guard lock(mutex_);
  auto& gaps = free_[static_cast<size_t>(rank)];
  const auto gap = std::find_if(gaps.begin(), gaps.end(), [&](const auto& one) {
    return one.second >= bytes;
  });
  if (gap == gaps.end()) {
    return std::nullopt;
  }
  const auto [offset, size] = *gap;
  gaps.erase(gap);
  if (size > bytes) {
    gaps.emplace(offset + bytes, size - bytes);
  }
  return offset;
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
  auto& gaps = free_[static_cast<size_t>(rank)];
  const auto next = gaps.lower_bound(offset);
  if (next != gaps.end() && next->first == offset + bytes) {
    bytes += next->second;
    gaps.erase(next);
  }
  const auto after = gaps.lower_bound(offset);
  if (after != gaps.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  gaps.emplace(offset, bytes);
}

}  // namespace ddp::detail
