#pragma once

#include <cstdint>
#include <string>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// A regular file that is read at any place. All functions throw c10::Error
/// that says what is wrong, and nothing else: the caller adds the file's name.
class InputFile {
 public:
  /// Does not wait for the other end of a FIFO: what is no regular file is
  /// refused.
  explicit InputFile(const std::string& path);

  uint64_t size() const { return size_; }

  /// Fills `out` with the bytes from `offset` on.
  void read(uint64_t offset, void* out, uint64_t size) const;
  std::string read(uint64_t offset, uint64_t size) const;

 private:
  FileDescriptor file_;
  uint64_t size_ = 0;
};

}  // namespace ddp::detail
