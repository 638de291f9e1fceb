#include "ddp/checkpoint/pickle/torch_file.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/hash.h>
#include <caffe2/serialize/inline_container.h>

#include "ddp/checkpoint/pickle/crc32.h"
#include "ddp/checkpoint/pickle/legacy_file.h"
#include "ddp/checkpoint/pickle/unpickler.h"
#include "ddp/checkpoint/pickle/zip_reader.h"
#include "ddp/job/error_text.h"

namespace ddp::detail {
namespace {

constexpr std::string_view kZipStart = "PK\x03\x04";
constexpr std::string_view kPickleStart = "\x80";

void write_archive(const Pickled& pickled, AtomicFile& file) {
  caffe2::serialize::PyTorchStreamWriter archive(
      [&file](const void* data, size_t size) {
        file.write(data, size);
        return size;
      });
  archive.writeRecord("data.pkl", pickled.bytes.data(), pickled.bytes.size());
  archive.writeRecord("byteorder", "little", 6);
  for (size_t i = 0; i < pickled.storages.size(); ++i) {
    const auto& bytes = pickled.storages[i];
    archive.writeRecord("data/" + std::to_string(i),
                        bytes.numel() > 0 ? bytes.const_data_ptr() : "",
                        bytes.nbytes());
  }
  archive.writeEndOfFile();
}

std::string_view text(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<size_t>(bytes.numel())};
}

/// Reads the records of an archive and computes a check sum of all read
/// records.
class Archive {
 public:
  explicit Archive(InputFile file) : zip_(std::move(file)) {}

  bool has(const std::string& name) const { return zip_.has(name); }

  at::Tensor read(const std::string& name) {
    auto record = zip_.read(name);
    content_ = c10::hash_combine(content_, record.crc);
    return std::move(record.bytes);
  }

  at::Tensor read_storage(const std::string& key,
                          int64_t count,
                          int64_t element_size) {
    auto bytes = read("data/" + key);
    TORCH_CHECK(bytes.numel() / element_size == count,
                "its record \"data/",
                key,
                "\" has another size than its pickle says");
    return bytes;
  }

  std::string content_id() const { return std::to_string(content_); }

 private:
  ZipReader zip_;
  size_t content_ = 0;
};

TorchFile read_archive(InputFile file) {
  Archive archive(std::move(file));
  TORCH_CHECK(
      !archive.has("byteorder") || text(archive.read("byteorder")) == "little",
      kBigEndian);
  const auto pickle = archive.read("data.pkl");
  ByteReader bytes(text(pickle));
  TorchFile result;
  result.value = unpickle(
      bytes,
      [&archive](const std::string& key, int64_t count, int64_t element_size) {
        return archive.read_storage(key, count, element_size);
      });
  result.content_id = archive.content_id();
  return result;
}

TorchFile read_legacy(const InputFile& file) {
  const auto bytes = at::empty({static_cast<int64_t>(file.size())}, at::kByte);
  file.read(0, bytes.mutable_data_ptr(), file.size());
  return {read_legacy_file(text(bytes)),
          std::to_string(crc32(bytes.const_data_ptr(), bytes.nbytes()))};
}

TorchFile read_file(const std::string& path) {
  InputFile file(path);
  const auto start =
      file.read(0, std::min<uint64_t>(file.size(), kZipStart.size()));
  if (start == kZipStart) {
    return read_archive(std::move(file));
  }
  TORCH_CHECK(start.substr(0, kPickleStart.size()) == kPickleStart, kCutOff);
  return read_legacy(file);
}

}  // namespace

TorchFile read_torch_file(const std::string& path) {
  return explain("Cannot load " + path, [&] { return read_file(path); });
}

void write_torch_file(const std::string& path,
                      const c10::IValue& value,
                      Disk& disk) {
  write_torch_file(
      path,
      explain("Cannot save " + path, [&] { return pickle(value); }),
      disk);
}

void write_torch_file(const std::string& path,
                      const Pickled& pickled,
                      Disk& disk) {
  explain("Cannot save " + path, [&] {
    AtomicFile file(path, disk);
    write_archive(pickled, file);
    file.commit();
  });
}

}  // namespace ddp::detail
