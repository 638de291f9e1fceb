#include "ddp/checkpoint/pickle/legacy_file.h"

#include <cstring>
#include <string>
#include <unordered_map>

#include <ATen/Functions.h>

#include "ddp/checkpoint/pickle/byte_reader.h"
#include "ddp/checkpoint/pickle/dict_reader.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/unpickler.h"

namespace ddp::detail {
namespace {

constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr int64_t kLegacyVersion = 1001;

/// The storages that the pickle names; their bytes follow later in the file.
class PendingStorages {
 public:
  /// @param size  maximum number of bytes of all storages together.
  explicit PendingStorages(uint64_t size) : left_(static_cast<int64_t>(size)) {}

  at::Tensor add(const std::string& key, int64_t count, int64_t element_size) {
    int64_t size = 0;
    TORCH_CHECK(
        !__builtin_mul_overflow(count, element_size, &size) && size <= left_,
        kCutOff);
    left_ -= size;
    auto bytes = at::empty({size}, at::kByte);
    storages_[key] = {bytes, count};
    return bytes;
  }

  /// Reads the next storage of the file: its number of elements and its bytes.
  void fill(const std::string& key, ByteReader& file) {
    const auto found = storages_.find(key);
    TORCH_CHECK(found != storages_.end() &&
                    file.number<int64_t>() == found->second.count,
                kCutOff);
    const auto& bytes = found->second.bytes;
    const auto size = static_cast<size_t>(bytes.numel());
    if (size > 0) {
      std::memcpy(bytes.mutable_data_ptr(), file.bytes(size).data(), size);
    }
    storages_.erase(found);
  }

  bool is_done() const { return storages_.empty(); }

 private:
  struct Storage {
    at::Tensor bytes;
    int64_t count = 0;
  };

  int64_t left_;
  std::unordered_map<std::string, Storage> storages_;
};

c10::IValue unpickle_plain(ByteReader& file) {
  return unpickle(file, [](const std::string&, int64_t, int64_t) -> at::Tensor {
    TORCH_CHECK(false, kCutOff);
  });
}

/// Reads the header before the value: magic number, version, machine.
void read_head(ByteReader& file) {
  const auto magic = content_of(unpickle_plain(file));
  TORCH_CHECK(magic.isString() && magic.toStringView() == kMagic, kCutOff);
  const auto version = unpickle_plain(file);
  TORCH_CHECK(version.isInt() && version.toInt() == kLegacyVersion, kCutOff);
  const DictReader machine(unpickle_plain(file), "machine");
  TORCH_CHECK(machine.boolean("little_endian"), kBigEndian);
}

}  // namespace

c10::IValue read_legacy_file(std::string_view bytes) {
  ByteReader file(bytes);
  read_head(file);
  PendingStorages storages(file.rest().size());
  auto value = unpickle(
      file,
      [&storages](const std::string& key, int64_t count, int64_t element_size) {
        return storages.add(key, count, element_size);
      });
  const auto keys = unpickle_plain(file);
  TORCH_CHECK(keys.isList(), kCutOff);
  for (const c10::IValue& key : keys.toListRef()) {
    TORCH_CHECK(key.isString(), kCutOff);
    storages.fill(key.toStringRef(), file);
  }
  TORCH_CHECK(storages.is_done(), kCutOff);
  return value;
}

}  // namespace ddp::detail
