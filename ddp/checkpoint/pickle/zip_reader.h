#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// Returns the check sum of zip files (CRC-32/ISO-HDLC) of `size` bytes at an
/// address that is divisible by 4.
/// @param before  check sum of the bytes before these.
uint32_t crc32(const void* data, size_t size, uint32_t before = 0);

/// A file to read.
struct OpenedFile {
  FileDescriptor descriptor;
  uint64_t size = 0;
};
/// Opens a file without blocking.
/// @throws c10::Error with the reason if it cannot be read or is not regular.
OpenedFile open_to_read(const std::string& path);

/// Maps bytes of a file, of dtype uint8. Writing to them does not change the
/// file. Returns an undefined tensor if the file system does not support this.
at::Tensor map_file(int fd, uint64_t offset, uint64_t size);

/// Views the memory of a contiguous tensor, such as the bytes of a record.
inline std::string_view text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

/// Reads the zip files that torch.save writes (records stored, not compressed),
/// and verifies them: truncated or altered data throws c10::Error with only the
/// reason. The caller adds the file's name.
///
/// A file without any check sums (torch.serialization.set_crc32_options(False))
/// is read without verifying its records.
///
/// Used instead of LibTorch's PyTorchStreamReader, which verifies no check
/// sums.
class ZipReader {
 public:
  struct Record {
    at::Tensor bytes;  ///< of dtype uint8
    uint32_t crc = 0;  ///< check sum of the bytes
  };

  /// Opens the file and reads its table of contents. Throws if the file is not
  /// regular, without blocking, or if records overlap, so that reading each
  /// record once needs no more memory than the size of the file. The error of a
  /// file in torch.save's format before PyTorch 1.6 tells how to convert it.
  explicit ZipReader(const std::string& path);

  /// Returns true if there is a record of this name. Names do not include the
  /// archive's top-level folder: "data.pkl", "data/0".
  bool has(const std::string& name) const;

  /// Returns the names of all records, sorted.
  std::vector<std::string> names() const;

  /// Reads a record into memory and verifies its check sum.
  Record read(const std::string& name) const;

  /// As `read`, but maps a large record: the processes that map the file share
  /// the kernel's page cache. Writing to the bytes does not change the file. If
  /// the file is cut off in place after this call, access to the bytes ends the
  /// process by SIGBUS.
  Record map(const std::string& name) const;

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

  void read_file(uint64_t offset, void* out, uint64_t size) const;
  std::string read_file(uint64_t offset, uint64_t size) const;
  Directory find_directory() const;
  uint64_t add_entry(std::string_view directory);
  void check_overlaps() const;
  const Entry& find(const std::string& name) const;
  uint64_t data_offset(const Entry& entry) const;
  void check_sum(const Entry& entry, uint32_t crc) const;

  OpenedFile file_;
  std::unordered_map<std::string, Entry> entries_;
  bool has_check_sums_ = false;
};

}  // namespace ddp::detail
