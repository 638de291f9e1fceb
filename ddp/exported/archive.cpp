#include "ddp/exported/archive.h"

#include <vector>

#include <ATen/ops/empty.h>

#include "ddp/base/atomic_file.h"
#include "ddp/checkpoint/pickle/zip_writer.h"
#include "ddp/job/error_text.h"
#include "ddp/tensors/expanded.h"

namespace ddp::detail {
namespace {

constexpr int64_t kSchemaMajor = 8;

std::vector<int64_t> static_sizes(const JsonValue& sizes) {
  std::vector<int64_t> result;
  for (const auto& size : sizes.elements()) {
    result.push_back(size.at("as_int").integer());
    if (result.back() < 0) {
      size.refuse("a size");
    }
  }
  return result;
}

/// Views the bytes of a record with the dtype, sizes and strides of `meta`.
at::Tensor view_bytes(const at::Tensor& bytes, const JsonValue& meta) {
  exported_layout(meta.at("layout"));
  const auto dtype = exported_dtype(meta.at("dtype")).toScalarType();
  const auto sizes = static_sizes(meta.at("sizes"));
  const auto strides = static_sizes(meta.at("strides"));
  const auto offset = meta.at("storage_offset").at("as_int").integer();
  try {
    return bytes.view(dtype).as_strided(sizes, strides, offset).detach();
  } catch (const c10::Error&) {
    meta.refuse("a tensor inside of its record of " +
                std::to_string(bytes.numel()) + " bytes");
  }
}

}  // namespace

c10::IValue exported_dtype(const JsonValue& number) {
  // The schema numbers dtypes from 1 in LibTorch's order, without the dtypes of
  // quantised tensors.
  constexpr auto kLast = static_cast<int64_t>(c10::kBool) + 1;
  if (number.integer() < 1 || number.integer() > kLast + 1) {
    number.refuse("a dtype of dense tensors (1 to 13)");
  }
  return number.integer() > kLast ? static_cast<int64_t>(c10::kBFloat16)
                                  : number.integer() - 1;
}

c10::IValue exported_layout(const JsonValue& number) {
  if (number.integer() != 7) {
    number.refuse("the strided layout (7); sparse tensors are not supported");
  }
  return c10::kStrided;
}

c10::IValue exported_memory_format(const JsonValue& number) {
  constexpr c10::MemoryFormat kFormats[] = {c10::MemoryFormat::Contiguous,
                                            c10::MemoryFormat::ChannelsLast,
                                            c10::MemoryFormat::ChannelsLast3d,
                                            c10::MemoryFormat::Preserve};
  if (number.integer() < 1 || number.integer() > 4) {
    number.refuse("a memory format (1 to 4)");
  }
  return kFormats[number.integer() - 1];
}

c10::IValue exported_device(const JsonValue& device) {
  c10::Device result(device.at("type").text());
  if (const auto index = device.find("index")) {
    result.set_index(static_cast<c10::DeviceIndex>(index->integer()));
  }
  return result;
}

ExportedArchive::ExportedArchive(const std::string& path) : zip_(path) {
  TORCH_CHECK(zip_.has("archive_format") &&
                  text_of(zip_.read("archive_format").bytes) == "pt2" &&
                  !zip_.has("data/weights/model.pt"),  // pickled, before 2.10
              "it is no file of torch.export.save of PyTorch 2.10 or later; "
              "export it again there");
  TORCH_CHECK(!zip_.has("byteorder") ||
                  text_of(zip_.read("byteorder").bytes) == "little",
              "it was written on a big-endian machine");
}

JsonValue ExportedArchive::read_json(const std::string& record) const {
  return JsonValue::parse(std::string(text_of(zip_.read(record).bytes)),
                          record);
}

JsonValue ExportedArchive::program() const {
  auto program = read_json("models/model.json");
  const auto major = program.at("schema_version").at("major");
  if (major.integer() != kSchemaMajor) {
    major.refuse("8, the schema that PyTorch 2.10 to 2.15 write");
  }
  return program;
}

std::map<std::string, ExportedTensor> ExportedArchive::tensors() const {
  std::map<std::string, ExportedTensor> tensors;
  std::map<std::string, at::Tensor> records;
  for (const std::string kind : {"weights", "constants"}) {
    const auto folder = "data/" + kind + "/";
    const auto config = folder + "model_" + kind + "_config.json";
    if (!zip_.has(config)) {
      continue;
    }
    for (const auto& [name, entry] : read_json(config).at("config").members()) {
      if (entry.at("use_pickle").boolean()) {
        entry.refuse(
            "a tensor's bytes; pickled ones (PyTorch before 2.10, objects of "
            "classes, sparse and quantised tensors) are not supported");
      }
      const auto record = folder + entry.at("path_name").text();
      auto& bytes = records[record];
      if (!bytes.defined()) {
        bytes = zip_.read(record).bytes;
      }
      const auto meta = entry.at("tensor_meta");
      auto value = view_bytes(bytes, meta);
      value.set_requires_grad(meta.at("requires_grad").boolean());
      tensors[name] = {
          value, record, exported_device(meta.at("device")).toDevice()};
    }
  }
  return tensors;
}

void ExportedArchive::save(
    const std::string& path,
    const std::map<std::string, at::Tensor>& values) const {
  // Tensors of a file are views of its records: a copy changes the record.
  std::map<std::string, at::Tensor> records;
  for (const auto& [name, tensor] : tensors()) {
    const auto value = values.find(name);
    if (value != values.end()) {
      copy_once(tensor.value.detach(), value->second.detach());
      records[tensor.record] =
          at::empty({0}, at::kByte).set_(tensor.value.storage());
    }
  }
  explain("Cannot save " + path, [&] {
    AtomicFile file(path);
    write_zip(file, [&](const AddRecord& add) {
      for (const auto& name : zip_.names()) {
        const auto changed = records.find(name);
        // write_zip() itself adds these records.
        if (name != "version" && name.compare(0, 6, ".data/") != 0) {
          add(name,
              text_of(changed != records.end() ? changed->second
                                               : zip_.read(name).bytes));
        }
      }
    });
    file.commit();
  });
}

}  // namespace ddp::detail
