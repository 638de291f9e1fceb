#include "ddp/checkpoint/pickle/torch_file.h"

#include <utility>

#include <c10/util/hash.h>

#include "ddp/checkpoint/pickle/unpickler.h"
#include "ddp/checkpoint/pickle/zip_reader.h"
#include "ddp/checkpoint/pickle/zip_writer.h"
#include "ddp/job/error_text.h"

namespace ddp::detail {
namespace {

TorchFile read_archive(const std::string& path) {
  const ZipReader zip(path);
  size_t content = 0;
  const auto read = [&](const std::string& name) {
    auto record = zip.read(name);
    content = c10::hash_combine(content, record.crc);
    return std::move(record.bytes);
  };
  TORCH_CHECK(!zip.has("byteorder") || text_of(read("byteorder")) == "little",
              "it was written on a big-endian machine");
  const auto read_storage =
      [&](const std::string& key, int64_t count, int64_t element_size) {
        auto bytes = read("data/" + key);
        TORCH_CHECK(bytes.numel() / element_size == count,
                    "its record \"data/",
                    key,
                    "\" has another size than its pickle says");
        return bytes;
      };
  const auto pickle = read("data.pkl");
  TorchFile file;
  file.value = unpickle(text_of(pickle), read_storage);
  file.content_id = std::to_string(content);
  return file;
}

}  // namespace

TorchFile read_torch_file(const std::string& path) {
  return explain("Cannot load " + path, [&] { return read_archive(path); });
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
    write_zip(file, [&](const AddRecord& add) {
      add("data.pkl", pickled.bytes);
      add("byteorder", "little");
      for (size_t i = 0; i < pickled.storages.size(); ++i) {
        add("data/" + std::to_string(i), text_of(pickled.storages[i]));
      }
    });
    file.commit();
  });
}

}  // namespace ddp::detail
