#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "ddp/detail/file_descriptor.h"

namespace ddp::detail {

/// Reads the zip files that torch.save writes (records stored, not compressed),
/// and verifies them: whatever is cut off or altered throws c10::Error that
/// says what is wrong, and nothing else. The caller adds the file's name.
class ZipReader {
 public:
  /// Reads the table of contents.
  explicit ZipReader(const std::string& path);

  /// True when there is a record of this name (without the archive's own first
  /// folder: "data.pkl", "data/0").
  bool has(const std::string& name) const;

  /// The bytes of a record, its check sum verified, as a new tensor of dtype
  /// uint8.
  at::Tensor read(const std::string& name) const;

 private:
  struct Entry {
    uint64_t header_offset = 0;
    uint64_t size = 0;
    uint32_t crc = 0;
    uint16_t method = 0;
  };
  struct Directory {
    uint64_t offset = 0;
    uint64_t size = 0;
    uint64_t entries = 0;
  };

  std::string read_at(uint64_t offset, uint64_t size) const;
  Directory find_directory() const;
  void read_entry(std::string_view& directory);

  FileDescriptor file_;
  uint64_t file_size_ = 0;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace ddp::detail
