#include "ddp/checkpoint/detail/safetensors.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "ddp/base/atomic_file.h"
#include "ddp/checkpoint/pickle/zip_reader.h"
#include "ddp/exported/json_value.h"

namespace ddp::detail {
namespace {

constexpr const char* kCutOff =
    "it is cut off, damaged, or not a file of safetensors";
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kShardingInfo = "DCP_SHARDING_INFO";
constexpr const char* kSavedOffsets = "saved_offsets";
constexpr const char* kDataOffsets = "data_offsets";
constexpr uint64_t kLengthSize = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // as in safetensors

constexpr std::array<std::pair<const char*, at::ScalarType>, 16> kDtypes{
    {{"F32", at::kFloat},
     {"F64", at::kDouble},
     {"F16", at::kHalf},
     {"BF16", at::kBFloat16},
     {"F8_E4M3", at::kFloat8_e4m3fn},
     {"F8_E5M2", at::kFloat8_e5m2},
     {"C64", at::kComplexFloat},
     {"BOOL", at::kBool},
     {"I8", at::kChar},
     {"U8", at::kByte},
     {"I16", at::kShort},
     {"U16", at::kUInt16},
     {"I32", at::kInt},
     {"U32", at::kUInt32},
     {"I64", at::kLong},
     {"U64", at::kUInt64}}};

const char* name_of_dtype(const TensorPiece& piece) {
  const auto* found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& one) {
        return one.second == piece.elements.scalar_type();
      });
  TORCH_CHECK(found != kDtypes.end(),
              "files of safetensors cannot hold the dtype of \"",
              piece.name,
              "\", ",
              piece.elements.scalar_type(),
              "; use Checkpoint::save");
  return found->first;
}

at::ScalarType dtype_of(const JsonValue& name) {
  const auto* found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& one) {
        return name.text() == one.first;
      });
  if (found == kDtypes.end()) {
    name.refuse("a dtype of LibTorch");
  }
  return found->second;
}

std::vector<int64_t> integers_of(const JsonValue& list) {
  std::vector<int64_t> result;
  for (const auto& element : list.elements()) {
    result.push_back(element.integer());
    if (result.back() < 0) {
      element.refuse("at least 0");
    }
  }
  return result;
}

/// Returns a tensor's part in the bytes of a file's tensors.
/// @param unread  number of bytes without a tensor until now.
TensorPiece piece_of(const std::string& name,
                     const JsonValue& entry,
                     const std::optional<JsonValue>& sharding,
                     const at::Tensor& data,
                     int64_t& unread) {
  const auto dtype = dtype_of(entry.at("dtype"));
  const auto sizes = integers_of(entry.at("shape"));
  const auto offsets = sharding
                           ? integers_of(sharding->at(name).at(kSavedOffsets))
                           : origin(static_cast<int64_t>(sizes.size()));
  const auto range = integers_of(entry.at(kDataOffsets));
  bool is_valid = offsets.size() == sizes.size() && range.size() == 2 &&
                  range[1] <= data.numel();
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (size_t i = 0; is_valid && i < sizes.size(); ++i) {
    is_valid = !__builtin_mul_overflow(bytes, sizes[i], &bytes) &&
               offsets[i] <= std::numeric_limits<int64_t>::max() - sizes[i];
  }
  if (!is_valid || range[1] - range[0] != bytes || bytes > unread) {
    entry.refuse("a tensor with as many bytes in the file as its shape has");
  }
  unread -= bytes;
  auto elements = data.narrow(0, range[0], bytes);
  // Python pads no header of a consolidated file.
  if (elements.storage_offset() % c10::elementSize(dtype) != 0) {
    elements = elements.clone();
  }
  return {name, offsets, elements.view(dtype).view(sizes)};
}

}  // namespace

void write_safetensors(const std::string& path, SafetensorsFile content) {
  auto& pieces = content.pieces;
  // As in safetensors: so that each tensor is aligned in the file.
  std::stable_sort(
      pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
        return a.elements.element_size() > b.elements.element_size();
      });
  nlohmann::json header;
  auto sharding = nlohmann::json::object();
  size_t end = 0;
  for (const auto& piece : pieces) {
    const size_t begin = std::exchange(end, end + piece.elements.nbytes());
    header[piece.name] = {{"dtype", name_of_dtype(piece)},
                          {"shape", piece.elements.sizes().vec()},
                          {kDataOffsets, {begin, end}}};
    sharding[piece.name] = {{kSavedOffsets, piece.offsets}};
  }
  header[kMetadata] = {{kShardingInfo, sharding.dump()},
                       {kSaveId, content.save_id},
                       {"DCP_VERSION", "1.0"},
                       {"format", "pt"}};
  auto text = header.dump();
  text.resize((text.size() + kLengthSize - 1) / kLengthSize * kLengthSize, ' ');
  const uint64_t length = text.size();
  AtomicFile file(path);
  file.write(&length, sizeof(length));
  file.write(text.data(), text.size());
  for (const auto& piece : pieces) {
    const auto elements =
        piece.elements.cpu().resolve_conj().resolve_neg().contiguous();
    file.write(elements.const_data_ptr(), elements.nbytes());
  }
  file.commit();
}

SafetensorsFile read_safetensors(const std::string& path) {
  const auto [file, size] = open_to_read(path);
  TORCH_CHECK(size >= kLengthSize, kCutOff);
  const auto bytes = map_file(file.get(), 0, size);
  TORCH_CHECK(bytes.defined(), "it cannot be mapped: ", std::strerror(errno));
  uint64_t length = 0;
  std::memcpy(&length, bytes.const_data_ptr(), sizeof(length));
  TORCH_CHECK(
      length <= kLongestHeader && length <= bytes.nbytes() - kLengthSize,
      kCutOff);
  const std::string text(text_of(bytes).substr(kLengthSize, length));
  const auto data = bytes.slice(0, static_cast<int64_t>(kLengthSize + length));
  const auto header = JsonValue::parse(text, "its header");
  SafetensorsFile content;
  std::optional<JsonValue> sharding;
  if (const auto metadata = header.find(kMetadata)) {
    if (const auto info = metadata->find(kShardingInfo)) {
      sharding = JsonValue::parse(info->text(), kShardingInfo);
    }
    if (const auto save_id = metadata->find(kSaveId)) {
      content.save_id = save_id->text();
    }
  }
  int64_t unread = data.numel();
  for (const auto& [name, entry] : header.members()) {
    if (name != kMetadata) {
      content.pieces.push_back(piece_of(name, entry, sharding, data, unread));
    }
  }
  TORCH_CHECK(unread == 0, kCutOff);
  return content;
}

}  // namespace ddp::detail
