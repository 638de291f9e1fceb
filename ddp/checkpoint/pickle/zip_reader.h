#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "ddp/checkpoint/pickle/byte_reader.h"
#include "ddp/checkpoint/pickle/input_file.h"

namespace ddp::detail {

/// Reads the zip files that torch.save writes (records stored, not compressed),
/// and verifies them: truncated or altered data throws c10::Error with only the
/// reason. The caller adds the file's name.
///
/// A file whose records have no check sums at all
/// (torch.serialization.set_crc32_options(False)) is read without verifying
/// them.
class ZipReader {
 public:
  struct Record {
    at::Tensor bytes;  ///< of dtype uint8; owns its memory
    uint32_t crc = 0;  ///< check sum of the bytes
  };

  /// Reads the table of contents. Throws if records overlap, so that reading
  /// each record once needs no more memory than the size of the file.
  explicit ZipReader(InputFile file);

  /// Returns true if there is a record of this name. Names do not include the
  /// archive's top-level folder: "data.pkl", "data/0".
  bool has(const std::string& name) const;

  /// Reads a record and verifies its check sum.
  Record read(const std::string& name) const;

 private:
  struct Entry {
    std::string name;  ///< including the archive's folder
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
