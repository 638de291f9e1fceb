#include "ddp/detail/checkpoint/pickle/zip_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include <ATen/Functions.h>

#include "ddp/detail/checkpoint/pickle/crc32.h"

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

constexpr const char* kCutOff =
    "it is cut off, damaged, or not a file of torch.save";

template <class T>
T get(std::string_view bytes, size_t offset) {
  TORCH_CHECK(bytes.size() >= sizeof(T) && offset <= bytes.size() - sizeof(T),
              kCutOff);
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string_view take(std::string_view& bytes, size_t size) {
  TORCH_CHECK(size <= bytes.size(), kCutOff);
  const auto taken = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return taken;
}

/// The data of the ZIP64 extra field; empty when there is none.
std::string_view zip64_field(std::string_view extra) {
  while (extra.size() >= 4) {
    const auto id = get<uint16_t>(extra, 0);
    const auto size = get<uint16_t>(extra, 2);
    take(extra, 4);
    const auto data = take(extra, size);
    if (id == kZip64Field) {
      return data;
    }
  }
  return {};
}

/// A field of 32 bits that says "too large" is continued in the ZIP64 field.
uint64_t widen(uint32_t value, std::string_view& zip64) {
  return value == std::numeric_limits<uint32_t>::max()
             ? get<uint64_t>(take(zip64, sizeof(uint64_t)), 0)
             : value;
}

/// torch.save puts all records in one folder named after the file.
std::string without_archive_folder(std::string_view name) {
  const auto slash = name.find('/');
  return std::string(slash == std::string_view::npos ? name
                                                     : name.substr(slash + 1));
}

void read_exactly(int fd, uint64_t offset, char* out, uint64_t size) {
  while (size > 0) {
    const auto count = ::pread(fd, out, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    TORCH_CHECK(count >= 0, std::strerror(errno));
    TORCH_CHECK(count > 0, kCutOff);
    offset += static_cast<uint64_t>(count);
    out += count;
    size -= static_cast<uint64_t>(count);
  }
}

}  // namespace

ZipReader::ZipReader(const std::string& path)
    : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  TORCH_CHECK(file_, std::strerror(errno));
  struct stat status {};
  TORCH_CHECK(::fstat(file_.get(), &status) == 0, std::strerror(errno));
  TORCH_CHECK(S_ISREG(status.st_mode), "it is not a regular file");
  file_size_ = static_cast<uint64_t>(status.st_size);

  const Directory found = find_directory();
  const std::string directory = read_at(found.offset, found.size);
  std::string_view rest = directory;
  while (!rest.empty()) {
    read_entry(rest);
  }
  TORCH_CHECK(entries_.size() == found.entries, kCutOff);
}

bool ZipReader::has(const std::string& name) const {
  return entries_.count(name) > 0;
}

at::Tensor ZipReader::read(const std::string& name) const {
  const auto found = entries_.find(name);
  TORCH_CHECK(found != entries_.end(), "it has no record \"", name, "\"");
  const Entry& entry = found->second;
  TORCH_CHECK(entry.method == kStored,
              "its record \"",
              name,
              "\" is compressed, which torch.save does not do");
  const auto header = read_at(entry.header_offset, kLocalHeaderSize);
  TORCH_CHECK(get<uint32_t>(header, 0) == kLocalHeader, kCutOff);
  const uint64_t offset = entry.header_offset + kLocalHeaderSize +
                          get<uint16_t>(header, 26) + get<uint16_t>(header, 28);
  TORCH_CHECK(offset <= file_size_ && entry.size <= file_size_ - offset,
              kCutOff);
  auto bytes = at::empty({static_cast<int64_t>(entry.size)}, at::kByte);
  auto* data = static_cast<char*>(bytes.mutable_data_ptr());
  read_exactly(file_.get(), offset, data, entry.size);
  TORCH_CHECK(crc32(data, entry.size) == entry.crc,
              "the check sum of its record \"",
              name,
              "\" is wrong: it was damaged after it was written");
  return bytes;
}

std::string ZipReader::read_at(uint64_t offset, uint64_t size) const {
  TORCH_CHECK(offset <= file_size_ && size <= file_size_ - offset, kCutOff);
  std::string bytes(size, '\0');
  read_exactly(file_.get(), offset, bytes.data(), size);
  return bytes;
}

ZipReader::Directory ZipReader::find_directory() const {
  const uint64_t tail_size =
      std::min(file_size_, kEnd64LocatorSize + kEndSize + kMaxComment);
  const std::string tail = read_at(file_size_ - tail_size, tail_size);
  TORCH_CHECK(tail_size >= kEndSize, kCutOff);
  // The end record is the last thing in the file, but for its own comment.
  size_t end = tail_size - kEndSize;
  while (get<uint32_t>(tail, end) != kEnd ||
         end + kEndSize + get<uint16_t>(tail, end + 20) != tail_size) {
    TORCH_CHECK(end > 0, kCutOff);
    --end;
  }
  if (end >= kEnd64LocatorSize &&
      get<uint32_t>(tail, end - kEnd64LocatorSize) == kEnd64Locator) {
    const auto end64 =
        read_at(get<uint64_t>(tail, end - kEnd64LocatorSize + 8), kEnd64Size);
    TORCH_CHECK(get<uint32_t>(end64, 0) == kEnd64, kCutOff);
    return {get<uint64_t>(end64, 48),
            get<uint64_t>(end64, 40),
            get<uint64_t>(end64, 32)};
  }
  return {get<uint32_t>(tail, end + 16),
          get<uint32_t>(tail, end + 12),
          get<uint16_t>(tail, end + 10)};
}

void ZipReader::read_entry(std::string_view& directory) {
  const auto header = take(directory, kCentralHeaderSize);
  TORCH_CHECK(get<uint32_t>(header, 0) == kCentralHeader, kCutOff);
  const auto name = take(directory, get<uint16_t>(header, 28));
  const auto extra = take(directory, get<uint16_t>(header, 30));
  take(directory, get<uint16_t>(header, 32));
  auto zip64 = zip64_field(extra);
  Entry entry;
  entry.method = get<uint16_t>(header, 10);
  entry.crc = get<uint32_t>(header, 16);
  entry.size = widen(get<uint32_t>(header, 24), zip64);
  const auto stored_size = widen(get<uint32_t>(header, 20), zip64);
  entry.header_offset = widen(get<uint32_t>(header, 42), zip64);
  TORCH_CHECK(stored_size == entry.size || entry.method != kStored, kCutOff);
  TORCH_CHECK(entries_.emplace(without_archive_folder(name), entry).second,
              kCutOff);
}

}  // namespace ddp::detail
