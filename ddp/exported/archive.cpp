#include "ddp/exported/archive.h"

#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <caffe2/serialize/inline_container.h>

#include "ddp/base/atomic_file.h"

namespace ddp::detail {
namespace {

constexpr int64_t kSchemaMajor = 8;
constexpr int64_t kStridedLayout = 7;

std::string_view text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<size_t>(bytes.numel())};
}

int64_t static_size(const JsonValue& size) {
  const auto number = size.find("as_int");
  if (!number || number->integer() < 0) {
    size.refuse("a size that is known");
  }
  return number->integer();
}

std::vector<int64_t> static_sizes(const JsonValue& sizes) {
  std::vector<int64_t> result;
  for (const auto& size : sizes.elements()) {
    result.push_back(static_size(size));
  }
  return result;
}

/// Returns the number of elements that the storage needs, or std::nullopt if it
/// is too large for any.
std::optional<int64_t> extent(const std::vector<int64_t>& sizes,
                              const std::vector<int64_t>& strides,
                              int64_t offset) {
  int64_t end = offset;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      return 0;
    }
    int64_t step = 0;
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
        __builtin_add_overflow(end, step, &end)) {
      return std::nullopt;
    }
  }
  return end == INT64_MAX ? std::nullopt : std::optional(end + 1);
}

/// Views the bytes of a record as its metadata says.
at::Tensor view_bytes(const at::Tensor& bytes, const JsonValue& meta) {
  check_strided(meta.at("layout"));
  const auto sizes = static_sizes(meta.at("sizes"));
  const auto strides = static_sizes(meta.at("strides"));
  const int64_t offset = static_size(meta.at("storage_offset"));
  const auto dtype = exported_dtype(meta.at("dtype"));
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  if (sizes.size() != strides.size() || sizes.size() > 64) {
    meta.refuse("sizes and strides of a tensor");
  }
  const auto needed = extent(sizes, strides, offset);
  if (!needed || *needed > bytes.numel() / width) {
    meta.refuse("a tensor inside of its record of " +
                std::to_string(bytes.numel()) + " bytes");
  }
  auto tensor = at::empty({0}, dtype);
  tensor.set_(bytes.storage(), *needed == 0 ? 0 : offset, sizes, strides);
  return tensor;
}

}  // namespace

c10::ScalarType exported_dtype(const JsonValue& number) {
  static const std::map<int64_t, c10::ScalarType> dtypes{
      {1, c10::kByte},
      {2, c10::kChar},
      {3, c10::kShort},
      {4, c10::kInt},
      {5, c10::kLong},
      {6, c10::kHalf},
      {7, c10::kFloat},
      {8, c10::kDouble},
      {9, c10::kComplexHalf},
      {10, c10::kComplexFloat},
      {11, c10::kComplexDouble},
      {12, c10::kBool},
      {13, c10::kBFloat16}};
  const auto found = dtypes.find(number.integer());
  if (found == dtypes.end()) {
    number.refuse("a dtype of dense tensors (1 to 13)");
  }
  return found->second;
}

void check_strided(const JsonValue& layout) {
  if (layout.integer() != kStridedLayout) {
    layout.refuse("the strided layout (7); sparse tensors are not supported");
  }
}

c10::Device exported_device(const JsonValue& device) {
  const auto index = device.find("index");
  c10::Device result(device.at("type").text());
  if (index) {
    result.set_index(static_cast<c10::DeviceIndex>(index->integer()));
  }
  return result;
}

ExportedArchive::ExportedArchive(const std::string& path) : zip_(path) {
  TORCH_CHECK(zip_.has("archive_format") &&
                  text_of(zip_.read("archive_format").bytes) == "pt2",
              "it is no file of torch.export.save of PyTorch 2.10 or later; "
              "export it again there");
  TORCH_CHECK(!zip_.has("byteorder") ||
                  text_of(zip_.read("byteorder").bytes) == "little",
              "it was written on a big-endian machine");
}

JsonValue ExportedArchive::program(const std::string& name) const {
  const auto record = "models/" + name + ".json";
  TORCH_CHECK(zip_.has(record), "it has no program \"", name, "\"");
  const auto bytes = zip_.read(record).bytes;
  auto program = JsonValue::parse(std::string(text_of(bytes)), record);
  const auto major = program.at("schema_version").at("major");
  if (major.integer() != kSchemaMajor) {
    major.refuse("8, the schema that PyTorch 2.10 to 2.15 write");
  }
  return program;
}

std::map<std::string, ExportedTensor> ExportedArchive::tensors(
    const std::string& program) const {
  std::map<std::string, ExportedTensor> tensors;
  add_tensors("data/weights/", program + "_weights_config.json", tensors);
  add_tensors("data/constants/", program + "_constants_config.json", tensors);
  return tensors;
}

void ExportedArchive::add_tensors(
    const std::string& folder,
    const std::string& config,
    std::map<std::string, ExportedTensor>& tensors) const {
  if (!zip_.has(folder + config)) {
    return;
  }
  const auto bytes = zip_.read(folder + config).bytes;
  const auto all = JsonValue::parse(std::string(text_of(bytes)), config);
  std::map<std::string, at::Tensor> records;
  for (const auto& [name, entry] : all.at("config").members()) {
    if (entry.at("use_pickle").boolean()) {
      entry.refuse(
          "a tensor's bytes; pickled ones (PyTorch before 2.10, objects of "
          "classes, sparse and quantised tensors) are not supported");
    }
    const auto record = folder + entry.at("path_name").text();
    TORCH_CHECK(zip_.has(record), "it has no record \"", record, "\"");
    auto& storage = records[record];
    if (!storage.defined()) {
      storage = zip_.read(record).bytes;
    }
    const auto meta = entry.at("tensor_meta");
    tensors[name] = {view_bytes(storage, meta),
                     record,
                     meta.at("requires_grad").boolean(),
                     exported_device(meta.at("device"))};
  }
}

void ExportedArchive::save(
    const std::string& path,
    const std::string& program,
    const std::map<std::string, at::Tensor>& values) const {
  // The tensors of the file, which are views of its records, get the values.
  const auto all = tensors(program);
  std::map<std::string, at::Tensor> records;
  for (const auto& [name, tensor] : all) {
    const auto value = values.find(name);
    if (value != values.end()) {
      tensor.value.copy_(value->second.detach());
      const auto& storage = tensor.value.storage();
      records[tensor.record] = at::from_blob(
          storage.mutable_data(),
          {static_cast<int64_t>(storage.nbytes())},
          [storage](void*) {},
          at::kByte);
    }
  }
  AtomicFile file(path);
  {
    caffe2::serialize::PyTorchStreamWriter archive(
        [&file](const void* data, size_t size) {
          file.write(data, size);
          return size;
        });
    for (const auto& name : zip_.names()) {
      // The writer adds these two.
      if (name == ".data/version" || name == "version" ||
          name == ".data/serialization_id") {
        continue;
      }
      const auto changed = records.find(name);
      const auto bytes =
          changed != records.end() ? changed->second : zip_.read(name).bytes;
      archive.writeRecord(name,
                          bytes.numel() > 0 ? bytes.const_data_ptr() : "",
                          bytes.nbytes());
    }
    archive.writeEndOfFile();
  }
  file.commit();
}

}  // namespace ddp::detail
