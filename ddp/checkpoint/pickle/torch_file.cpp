#include "ddp/checkpoint/pickle/torch_file.h"

#include <cstring>
#include <exception>
#include <utility>

#include <c10/core/CPUAllocator.h>
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
  const auto add = [&](ZipReader::Record record) {
    content = c10::hash_combine(content, record.crc);
    return std::move(record.bytes);
  };
  TORCH_CHECK(
      !zip.has("byteorder") || text_of(add(zip.read("byteorder"))) == "little",
      "it was written on a big-endian machine");
  TorchFile file;
  const auto read_storage =
      [&](const std::string& key, int64_t count, int64_t element_size) {
        auto bytes = add(zip.map("data/" + key));
        TORCH_CHECK(bytes.numel() / element_size == count,
                    "its record \"data/",
                    key,
                    "\" has another size than its pickle says");
        file.mapped.emplace_back(bytes.storage());
        return bytes;
      };
  const auto pickle = add(zip.read("data.pkl"));
  file.value = unpickle(text_of(pickle), read_storage);
  file.content_id = std::to_string(content);
  return file;
}

}  // namespace

MappedStorage::~MappedStorage() {
  // A storage that is not mapped has LibTorch's allocator and is resizable.
  if (!storage_ || storage_.use_count() == 1 || storage_.resizable()) {
    return;
  }
  auto* allocator = c10::GetCPUAllocator();
  try {
    auto copy = allocator->allocate(storage_.nbytes());
    std::memcpy(copy.mutable_get(), storage_.data(), storage_.nbytes());
    auto* impl = storage_.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(std::move(copy));
    impl->set_allocator(allocator);
    impl->set_resizable(true);
  } catch (const std::exception&) {
    // Without memory for the copy the tensors keep the mapping.
  }
}

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
        const auto bytes = pickled.storages[i]();
        add("data/" + std::to_string(i), text_of(bytes));
      }
    });
    file.commit();
  });
}

}  // namespace ddp::detail
