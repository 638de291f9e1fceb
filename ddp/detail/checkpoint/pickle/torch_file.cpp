#include "ddp/detail/checkpoint/pickle/torch_file.h"

#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/Functions.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include "ddp/detail/checkpoint/pickle/python_value.h"
#include "ddp/detail/checkpoint/pickle/unpickler.h"
#include "ddp/detail/checkpoint/pickle/zip_reader.h"
#include "ddp/detail/explain.h"

namespace ddp::detail {
namespace {

using c10::IValue;

/// Makes a tree of values ready to be written.
class Exporter {
 public:
  IValue operator()(const IValue& value) {
    if (value.isTensor()) {
      return plain(value.toTensor());
    }
    if (value.isGenericDict()) {
      auto result = new_dict();
      for (const auto& item : value.toGenericDict()) {
        result.toGenericDict().insert(item.key(), (*this)(item.value()));
      }
      return result;
    }
    if (value.isList()) {
      auto result = new_list();
      for (const auto& item : value.toListRef()) {
        result.toList().push_back((*this)(item));
      }
      return result;
    }
    return value;
  }

 private:
  at::Tensor plain(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.defined() && tensor.layout() == at::kStrided &&
                    !tensor.is_meta() && !tensor.is_quantized(),
                "expected dense tensors with data, but got ",
                tensor.toString());
    const auto resolved = tensor.detach().resolve_conj().resolve_neg();
    TORCH_CHECK(resolved.scalar_type() <= at::ScalarType::BFloat16,
                "dtype ",
                resolved.scalar_type(),
                " cannot be written; convert the tensor first");
    if (resolved.is_cpu()) {
      return resolved;
    }
    // A storage is fetched once, so that tensors go on sharing it.
    auto& host = host_storages_[resolved.storage().unsafeGetStorageImpl()];
    if (!host.defined()) {
      const auto bytes = static_cast<int64_t>(resolved.storage().nbytes());
      host = at::empty({0}, resolved.options().dtype(at::kByte))
                 .set_(resolved.storage(), 0, {bytes}, {1})
                 .cpu();
      sources_.push_back(resolved);
    }
    return at::empty({0}, resolved.options().device(at::kCPU))
        .set_(host.storage(),
              resolved.storage_offset(),
              resolved.sizes(),
              resolved.strides());
  }

  std::unordered_map<void*, at::Tensor> host_storages_;
  std::vector<at::Tensor> sources_;  // keeps the keys of the map alive
};

void write_archive(const IValue& value, AtomicFile& file) {
  caffe2::serialize::PyTorchStreamWriter archive(
      [&file](const void* data, size_t size) {
        file.write(data, size);
        return size;
      });
  std::string pickle;
  torch::jit::Pickler pickler(
      [&pickle](const char* data, size_t size) { pickle.append(data, size); },
      nullptr,
      nullptr,
      nullptr,
      nullptr,
      /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();

  archive.writeRecord("data.pkl", pickle.data(), pickle.size());
  archive.writeRecord("byteorder", "little", 6);
  for (size_t i = 0; i < pickler.tensorData().size(); ++i) {
    const auto& storage = pickler.tensorData()[i].storage();
    archive.writeRecord("data/" + std::to_string(i),
                        storage.nbytes() > 0 ? storage.data() : "",
                        storage.nbytes());
  }
  archive.writeEndOfFile();
}

std::string_view text(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<size_t>(bytes.numel())};
}

TorchFile read_archive(const std::string& path) {
  const ZipReader zip(path);
  TORCH_CHECK(!zip.has("byteorder") || text(zip.read("byteorder")) == "little",
              "it was written on a big-endian machine");
  const auto pickle = zip.read("data.pkl");
  TorchFile file;
  file.value = unpickle(text(pickle), [&zip](const std::string& key) {
    return zip.read("data/" + key);
  });
  constexpr const char* kId = caffe2::serialize::kSerializationIdRecordName;
  file.content_id = zip.has(kId) ? text(zip.read(kId)) : "";
  return file;
}

}  // namespace

TorchFile read_torch_file(const std::string& path) {
  return explain("Cannot load " + path, [&] { return read_archive(path); });
}

void write_torch_file(const std::string& path,
                      const IValue& value,
                      Disk& disk) {
  explain("Cannot save " + path, [&] {
    const auto exported = Exporter()(value);
    AtomicFile file(path, disk);
    write_archive(exported, file);
    file.commit();
  });
}

}  // namespace ddp::detail
