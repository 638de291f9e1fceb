#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "ddp/checkpoint/pickle/byte_reader.h"
#include "ddp/checkpoint/pickle/input_file.h"

namespace ddp::detail {

/// Reads the zip files that torch.save writes (records stored, not compressed),
/// and verifies them: whatever is cut off or altered throws c10::Error that
/// says what is wrong, and nothing else. The caller adds the file's name.
///
/// A file whose records have no check sums at all
/// (torch.serialization.set_crc32_options(False)) is read without.
class ZipReader {
 public:
  struct Record {
    at::Tensor bytes;  ///< of dtype uint8; owns its memory
    uint32_t crc = 0;  ///< their check sum
  };

  /// Reads the table of contents. Records must not overlap, so that to read
  /// each once takes no more memory than the file is long.
  explicit ZipReader(InputFile file);

  /// True when there is a record of this name (without the archive's own first
  /// folder: "data.pkl", "data/0").
  bool has(const std::string& name) const;

  /// A record, its check sum verified.
  Record read(const std::string& name) const;

 private:
  struct Entry {
    std::string name;  ///< with the archive's folder
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

  Directory find_directory() const;
  void read_entry(ByteReader& directory);
  void check_overlaps() const;
  uint64_t data_offset(const Entry& entry) const;

  InputFile file_;
  std::unordered_map<std::string, Entry> entries_;
  bool has_check_sums_ = false;
};

}  // namespace ddp::detail
