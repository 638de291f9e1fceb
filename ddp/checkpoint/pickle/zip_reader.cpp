#include "ddp/checkpoint/pickle/zip_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/alignment.h>

namespace ddp::detail {

// The check sum of LibTorch's zip writer. The header defines its functions with
// external names, which the namespaces keep local. The headers that it includes
// are included above.
namespace libtorch {
namespace {
#include <caffe2/serialize/crc_alt.h>
}  // namespace
}  // namespace libtorch

namespace {

constexpr const char* kCutOff =
    "it is cut off, damaged, or not a file of torch.save";

// The start of a file of torch.save before PyTorch 1.6 has this number.
constexpr std::string_view kOldMagic =
    "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr uint64_t kOldStart = 32;

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

// The kernel limits the number of mappings of a process, to 65,530 by default.
constexpr uint64_t kLeastMapped = 256 << 10;
constexpr uint64_t kChunk = 1 << 20;  // of a file that is only verified

std::string_view part(std::string_view bytes, uint64_t offset, uint64_t size) {
  TORCH_CHECK(offset <= bytes.size() && size <= bytes.size() - offset, kCutOff);
  return bytes.substr(offset, size);
}

template <class T>
T get(std::string_view bytes, uint64_t offset) {
  T value{};
  std::memcpy(&value, part(bytes, offset, sizeof(T)).data(), sizeof(T));
  return value;
}

/// Returns the data of the ZIP64 extra field; empty if there is none.
std::string_view zip64_field(std::string_view extra) {
  constexpr uint64_t kHeaderSize = 4;
  while (extra.size() >= kHeaderSize) {
    const auto data = part(extra, kHeaderSize, get<uint16_t>(extra, 2));
    if (get<uint16_t>(extra, 0) == kZip64Field) {
      return data;
    }
    extra.remove_prefix(kHeaderSize + data.size());
  }
  return {};
}

/// Returns a 32-bit field, or if it is at its maximum, the next 64-bit value of
/// the ZIP64 field, which it removes there.
uint64_t widen(uint32_t value, std::string_view& zip64) {
  if (value != std::numeric_limits<uint32_t>::max()) {
    return value;
  }
  const auto wide = get<uint64_t>(zip64, 0);
  zip64.remove_prefix(sizeof(wide));
  return wide;
}

/// Removes the first folder of the name: torch.save puts all records into one
/// folder, which is named after the file.
std::string without_archive_folder(const std::string& name) {
  return name.substr(name.find('/') + 1);
}

}  // namespace

at::Tensor map_file(int fd, uint64_t offset, uint64_t size) {
  const uint64_t shift =
      offset % static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t length = shift + size;
  void* start = ::mmap(nullptr,
                       length,
                       PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_NORESERVE,
                       fd,
                       static_cast<off_t>(offset - shift));
  if (start == MAP_FAILED) {
    return {};
  }
  return at::from_blob(
      static_cast<char*>(start) + shift,
      {static_cast<int64_t>(size)},
      [start, length](void* /*bytes*/) { ::munmap(start, length); },
      at::kByte);
}

uint32_t crc32(const void* data, size_t size, uint32_t before) {
  return libtorch::crc32_fast(data, size, before);
}

OpenedFile open_to_read(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  TORCH_CHECK(file && ::fstat(file.get(), &status) == 0, std::strerror(errno));
  TORCH_CHECK(S_ISREG(status.st_mode), "it is not a regular file");
  return {std::move(file), static_cast<uint64_t>(status.st_size)};
}

ZipReader::ZipReader(const std::string& path) : file_(open_to_read(path)) {
  const auto start = read_file(0, std::min(file_.size, kOldStart));
  TORCH_CHECK(start.find(kOldMagic) == std::string::npos,
              "it has torch.save's format before PyTorch 1.6; load it in "
              "Python and save it again: torch.save(torch.load(path), path)");
  const Directory found = find_directory();
  const std::string directory = read_file(found.offset, found.size);
  for (uint64_t at = 0; at < directory.size();) {
    at += add_entry(std::string_view(directory).substr(at));
  }
  TORCH_CHECK(entries_.size() == found.entries, kCutOff);
  check_overlaps();
}

bool ZipReader::has(const std::string& name) const {
  return entries_.count(name) > 0;
}

std::vector<std::string> ZipReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

ZipReader::Record ZipReader::read(const std::string& name) const {
  const Entry& entry = find(name);
  const uint64_t offset = data_offset(entry);
  Record record;
  record.bytes = at::empty({static_cast<int64_t>(entry.size)}, at::kByte);
  read_file(offset, record.bytes.mutable_data_ptr(), entry.size);
  record.crc = crc32(record.bytes.const_data_ptr(), entry.size);
  check_sum(entry, record.crc);
  return record;
}

ZipReader::Record ZipReader::map(const std::string& name) const {
  const Entry& entry = find(name);
  const uint64_t offset = data_offset(entry);
  Record record;
  if (entry.size >= kLeastMapped && offset % c10::gAlignment == 0) {
    record.bytes = map_file(file_.descriptor.get(), offset, entry.size);
  }
  if (!record.bytes.defined()) {
    return read(name);
  }
  // By a system call, which returns an error where the mapping has a signal.
  std::vector<char> chunk(std::min(entry.size, kChunk));
  for (uint64_t at = 0; at < entry.size; at += chunk.size()) {
    const auto size = std::min<uint64_t>(chunk.size(), entry.size - at);
    read_file(offset + at, chunk.data(), size);
    record.crc = crc32(chunk.data(), size, record.crc);
  }
  check_sum(entry, record.crc);
  return record;
}

const ZipReader::Entry& ZipReader::find(const std::string& name) const {
  const auto found = entries_.find(name);
  TORCH_CHECK(found != entries_.end(), "it has no record \"", name, "\"");
  TORCH_CHECK(found->second.method == kStored,
              "its record \"",
              name,
              "\" is compressed, which torch.save does not do");
  return found->second;
}

void ZipReader::check_sum(const Entry& entry, uint32_t crc) const {
  TORCH_CHECK(!has_check_sums_ || crc == entry.crc,
              "the check sum of its record \"",
              without_archive_folder(entry.name),
              "\" is wrong: it was damaged after it was written");
}

void ZipReader::read_file(uint64_t offset, void* out, uint64_t size) const {
  TORCH_CHECK(offset <= file_.size && size <= file_.size - offset, kCutOff);
  auto* bytes = static_cast<char*>(out);
  while (size > 0) {
    const auto count = retry_interrupted([&] {
      return ::pread(
          file_.descriptor.get(), bytes, size, static_cast<off_t>(offset));
    });
    TORCH_CHECK(count >= 0, std::strerror(errno));
    TORCH_CHECK(count > 0, kCutOff);  // truncated meanwhile
    offset += static_cast<uint64_t>(count);
    bytes += count;
    size -= static_cast<uint64_t>(count);
  }
}

std::string ZipReader::read_file(uint64_t offset, uint64_t size) const {
  // Checked before the allocation, since `size` may be any number.
  TORCH_CHECK(size <= file_.size, kCutOff);
  std::string bytes(size, '\0');
  read_file(offset, bytes.data(), size);
  return bytes;
}

/// Returns the offset of the record's data. Compares the name in the local
/// header: without check sums only the name shows that the data belong to this
/// record.
uint64_t ZipReader::data_offset(const Entry& entry) const {
  const auto header =
      read_file(entry.header_offset, kLocalHeaderSize + entry.name.size());
  TORCH_CHECK(get<uint32_t>(header, 0) == kLocalHeader &&
                  get<uint16_t>(header, 26) == entry.name.size() &&
                  header.substr(kLocalHeaderSize) == entry.name,
              kCutOff);
  const uint64_t offset =
      entry.header_offset + header.size() + get<uint16_t>(header, 28);
  TORCH_CHECK(offset <= file_.size && entry.size <= file_.size - offset,
              kCutOff);
  return offset;
}

ZipReader::Directory ZipReader::find_directory() const {
  const uint64_t tail_size =
      std::min(file_.size, kEnd64LocatorSize + kEndSize + kMaxComment);
  const auto tail = read_file(file_.size - tail_size, tail_size);
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
    const auto end64 =
        read_file(get<uint64_t>(tail, end - kEnd64LocatorSize + 8), kEnd64Size);
    TORCH_CHECK(get<uint32_t>(end64, 0) == kEnd64, kCutOff);
    return {get<uint64_t>(end64, 48),
            get<uint64_t>(end64, 40),
            get<uint64_t>(end64, 32)};
  }
  return {get<uint32_t>(tail, end + 16),
          get<uint32_t>(tail, end + 12),
          get<uint16_t>(tail, end + 10)};
}

/// Adds the entry at the front of the directory and returns its size there.
uint64_t ZipReader::add_entry(std::string_view directory) {
  TORCH_CHECK(get<uint32_t>(directory, 0) == kCentralHeader, kCutOff);
  const uint64_t name_size = get<uint16_t>(directory, 28);
  const uint64_t extra_size = get<uint16_t>(directory, 30);
  const uint64_t size = kCentralHeaderSize + name_size + extra_size +
                        get<uint16_t>(directory, 32);
  TORCH_CHECK(size <= directory.size(), kCutOff);
  auto zip64 =
      zip64_field(part(directory, kCentralHeaderSize + name_size, extra_size));
  Entry entry;
  entry.name = part(directory, kCentralHeaderSize, name_size);
  entry.method = get<uint16_t>(directory, 10);
  entry.crc = get<uint32_t>(directory, 16);
  const auto unpacked_size = widen(get<uint32_t>(directory, 24), zip64);
  entry.size = widen(get<uint32_t>(directory, 20), zip64);
  entry.header_offset = widen(get<uint32_t>(directory, 42), zip64);
  TORCH_CHECK((unpacked_size == entry.size || entry.method != kStored) &&
                  entry.header_offset <= file_.size &&
                  entry.size <= file_.size - entry.header_offset,
              kCutOff);
  has_check_sums_ |= entry.crc != 0;
  TORCH_CHECK(
      entries_.emplace(without_archive_folder(entry.name), entry).second,
      kCutOff);
  return size;
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
