#pragma once

#include <cstdint>
#include <string>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// A regular file with random access for reading. All functions throw
/// c10::Error with only the reason; the caller adds the file's name.
class InputFile {
 public:
  /// Opens the file. Throws for a FIFO or any other file that is not regular,
  /// without blocking.
  explicit InputFile(const std::string& path);

  uint64_t size() const { return size_; }

  /// Fills `out` with `size` bytes from `offset` on.
  void read(uint64_t offset, void* out, uint64_t size) const;
  std::string read(uint64_t offset, uint64_t size) const;

 private:
  FileDescriptor file_;
  uint64_t size_ = 0;
};

}  // namespace ddp::detail
