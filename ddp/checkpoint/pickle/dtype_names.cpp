#include "ddp/checkpoint/pickle/dtype_names.h"

namespace ddp::detail {
namespace {

std::string last_part(const std::string& dotted) {
  return dotted.substr(dotted.rfind('.') + 1);
}

/// Python adds no more storage classes: the last ones are for quantized dtypes.
bool has_storage_class(at::ScalarType dtype) {
  return dtype <= at::ScalarType::QUInt2x4 &&
         dtype != at::ScalarType::ComplexHalf;
}

}  // namespace

std::optional<at::ScalarType> dtype_of_storage(const std::string& dotted) {
  const auto name = last_part(dotted);
  if (name == "UntypedStorage") {
    return at::kByte;
  }
  for (int i = 0; i < static_cast<int>(at::ScalarType::Undefined); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (storage_class(dtype) == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

std::optional<at::ScalarType> dtype_of_name(const std::string& dotted) {
  const auto& names = c10::getStringToDtypeMap();
  const auto found = names.find(last_part(dotted));
  return found == names.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string> storage_class(at::ScalarType dtype) {
  return has_storage_class(dtype)
             ? std::optional(std::string(c10::toString(dtype)) + "Storage")
             : std::nullopt;
}

}  // namespace ddp::detail
