#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// Memory that the ranks of one host map: a board, which all ranks write, and
/// an arena for each rank, from which that rank allocates. The memory has no
/// name in the file system: the kernel frees the memory at the end of the last
/// process, also after SIGKILL.
///
/// An arena has as many addresses as this machine has memory, or an equal part
/// of 1 TiB, but a page takes memory only while it is allocated. A forked child
/// does not have the mapping.
///
/// Thread contract: thread-safe.
class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  /// Creates the file behind the memory of `ranks` ranks.
  /// @throws std::system_error if the kernel or a sandbox refuses.
  static FileDescriptor make_file(int ranks, size_t board_bytes);

  /// Maps the file.
  /// @param file  of `make_file` with the same numbers.
  /// @throws std::system_error if there is no address space (RLIMIT_AS).
  SharedMemory(FileDescriptor file, int ranks, size_t board_bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// The board: zeros at the beginning, aligned to a page.
  void* board() const { return base_; }
  std::byte* arena(int rank) const;
  /// Number of arenas.
  int ranks() const { return static_cast<int>(used_.size()); }

  /// False in a forked child.
  bool is_mapped() const;

  /// Returns the offset of an address in the arena of `rank`, or std::nullopt
  /// if the address is elsewhere.
  std::optional<uint64_t> offset_of(const void* address, int rank) const;

  /// Allocates zeros, aligned to a page, in the arena of `rank`. The other
  /// ranks see them at the same offset. The result owns the mapping, too.
  /// Returns null if there is no memory.
  std::shared_ptr<std::byte> allocate(size_t bytes, int rank);

  /// As `allocate`, but the memory stays until the last process has unmapped it
  /// all, also after the end of this one. Returns the offset in the arena.
  std::optional<uint64_t> allocate_kept(size_t bytes, int rank);

  /// Maps a part of each arena, the same one of all, at one address: that of
  /// rank 0, then that of rank 1 and so on. This process can write to the part
  /// of `rank` alone. The memory stays until the result is destroyed, also if a
  /// rank has left.
  /// @param offset  of `allocate_kept`.
  /// @param bytes  of one rank, whole pages.
  /// @throws std::system_error if there is no address space.
  std::shared_ptr<std::byte> map_side_by_side(uint64_t offset,
                                              uint64_t bytes,
                                              int rank);

 private:
  bool reserve(uint64_t begin, uint64_t bytes);
  std::optional<uint64_t> take(uint64_t bytes, int rank);
  void give_back(uint64_t offset, uint64_t bytes, int rank);
  uint64_t file_offset(uint64_t offset, int rank) const;

  const pid_t process_;
  const FileDescriptor file_;
  uint64_t board_bytes_ = 0;
  uint64_t arena_bytes_ = 0;
  std::byte* base_ = nullptr;
  std::mutex mutex_;
  std::vector<std::map<uint64_t, uint64_t>> used_;  // by rank: offset, bytes
};

}  // namespace ddp::detail
