#include "ddp/checkpoint/pickle/zip_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "ddp/checkpoint/pickle/crc32.h"

namespace ddp::detail {
namespace {

// Sizes and signatures of PKWARE's APPNOTE 6.3.
constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kEnd64Locator = 0x07064b50;
constexpr uint64_t kLocalHeaderSize = 30;
constexpr uint64_t kCentralHeaderSize = 46;
constexpr uint64_t kEndSize = 22;
constexpr uint64_t kEnd64Size = 56;
constexpr uint64_t kEnd64LocatorSize = 20;
constexpr uint64_t kMaxComment = 0xFFFF;
constexpr uint16_t kZip64Field = 1;
constexpr uint16_t kStored = 0;

template <class T>
T get(std::string_view bytes, size_t offset) {
  TORCH_CHECK(offset <= bytes.size(), kCutOff);
  return ByteReader(bytes.substr(offset)).number<T>();
}

/// Returns the data of the ZIP64 extra field; empty if there is none.
std::string_view zip64_field(std::string_view extra) {
  ByteReader fields(extra);
  while (fields.rest().size() >= 4) {
    const auto id = fields.number<uint16_t>();
    const auto data = fields.bytes(fields.number<uint16_t>());
    if (id == kZip64Field) {
      return data;
    }
  }
  return {};
}

/// Returns a 32-bit field, or its 64-bit value from the ZIP64 field if it is at
/// its maximum.
uint64_t widen(uint32_t value, ByteReader& zip64) {
  return value == std::numeric_limits<uint32_t>::max()
             ? zip64.number<uint64_t>()
             : value;
}

/// Removes the first folder of the name: torch.save puts all records into one
/// folder, which is named after the file.
std::string without_archive_folder(std::string_view name) {
  const auto slash = name.find('/');
  return std::string(slash == std::string_view::npos ? name
                                                     : name.substr(slash + 1));
}

}  // namespace

ZipReader::ZipReader(InputFile file) : file_(std::move(file)) {
  const Directory found = find_directory();
  const std::string bytes = file_.read(found.offset, found.size);
  ByteReader directory(bytes);
  while (!directory.rest().empty()) {
    read_entry(directory);
  }
  TORCH_CHECK(entries_.size() == found.entries, kCutOff);
  check_overlaps();
}

bool ZipReader::has(const std::string& name) const {
  return entries_.count(name) > 0;
}

ZipReader::Record ZipReader::read(const std::string& name) const {
  const auto found = entries_.find(name);
  TORCH_CHECK(found != entries_.end(), "it has no record \"", name, "\"");
  const Entry& entry = found->second;
  TORCH_CHECK(entry.method == kStored,
              "its record \"",
              name,
              "\" is compressed, which torch.save does not do");
  const uint64_t offset = data_offset(entry);
  TORCH_CHECK(offset <= file_.size() && entry.size <= file_.size() - offset,
              kCutOff);
  Record record;
  record.bytes = at::empty({static_cast<int64_t>(entry.size)}, at::kByte);
  file_.read(offset, record.bytes.mutable_data_ptr(), entry.size);
  record.crc = crc32(record.bytes.const_data_ptr(), entry.size);
  TORCH_CHECK(!has_check_sums_ || record.crc == entry.crc,
              "the check sum of its record \"",
              name,
              "\" is wrong: it was damaged after it was written");
  return record;
}

/// Returns the offset of the record's data. Compares the name in the local
/// header: without check sums only the name shows that the data belong to this
/// record.
uint64_t ZipReader::data_offset(const Entry& entry) const {
  const auto header =
      file_.read(entry.header_offset, kLocalHeaderSize + entry.name.size());
  TORCH_CHECK(get<uint32_t>(header, 0) == kLocalHeader &&
                  get<uint16_t>(header, 26) == entry.name.size() &&
                  header.substr(kLocalHeaderSize) == entry.name,
              kCutOff);
  return entry.header_offset + header.size() + get<uint16_t>(header, 28);
}

ZipReader::Directory ZipReader::find_directory() const {
  const uint64_t size = file_.size();
  const uint64_t tail_size =
      std::min(size, kEnd64LocatorSize + kEndSize + kMaxComment);
  const std::string tail = file_.read(size - tail_size, tail_size);
  TORCH_CHECK(tail_size >= kEndSize, kCutOff);
  // The end record is at the end of the file, followed only by its own comment.
  size_t end = tail_size - kEndSize;
  while (get<uint32_t>(tail, end) != kEnd ||
         end + kEndSize + get<uint16_t>(tail, end + 20) != tail_size) {
    TORCH_CHECK(end > 0, kCutOff);
    --end;
  }
  if (end >= kEnd64LocatorSize &&
      get<uint32_t>(tail, end - kEnd64LocatorSize) == kEnd64Locator) {
    const auto end64 = file_.read(
        get<uint64_t>(tail, end - kEnd64LocatorSize + 8), kEnd64Size);
    TORCH_CHECK(get<uint32_t>(end64, 0) == kEnd64, kCutOff);
    return {get<uint64_t>(end64, 48),
            get<uint64_t>(end64, 40),
            get<uint64_t>(end64, 32)};
  }
  return {get<uint32_t>(tail, end + 16),
          get<uint32_t>(tail, end + 12),
          get<uint16_t>(tail, end + 10)};
}

void ZipReader::read_entry(ByteReader& directory) {
  const auto header = directory.bytes(kCentralHeaderSize);
  TORCH_CHECK(get<uint32_t>(header, 0) == kCentralHeader, kCutOff);
  const auto name = directory.bytes(get<uint16_t>(header, 28));
  const auto extra = directory.bytes(get<uint16_t>(header, 30));
  directory.bytes(get<uint16_t>(header, 32));
  ByteReader zip64(zip64_field(extra));
  Entry entry;
  entry.name = name;
  entry.method = get<uint16_t>(header, 10);
  entry.crc = get<uint32_t>(header, 16);
  const auto unpacked_size = widen(get<uint32_t>(header, 24), zip64);
  entry.size = widen(get<uint32_t>(header, 20), zip64);
  entry.header_offset = widen(get<uint32_t>(header, 42), zip64);
  TORCH_CHECK(unpacked_size == entry.size || entry.method != kStored, kCutOff);
  TORCH_CHECK(entry.header_offset <= file_.size() &&
                  entry.size <= file_.size() - entry.header_offset,
              kCutOff);
  has_check_sums_ |= entry.crc != 0;
  TORCH_CHECK(entries_.emplace(without_archive_folder(name), entry).second,
              kCutOff);
}

void ZipReader::check_overlaps() const {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [_, entry] : entries_) {
    ranges.emplace_back(entry.header_offset,
                        entry.header_offset + kLocalHeaderSize +
                            entry.name.size() + entry.size);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    TORCH_CHECK(ranges[i - 1].second <= ranges[i].first,
                "its records overlap, which torch.save does not do");
  }
}

}  // namespace ddp::detail
