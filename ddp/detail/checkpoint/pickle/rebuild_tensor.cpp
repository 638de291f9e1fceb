#include "ddp/detail/checkpoint/pickle/rebuild_tensor.h"

#include <algorithm>
#include <cctype>

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>

namespace ddp::detail {
namespace {

constexpr const char* kNoTensor = "it describes a tensor wrongly";

std::string last_part(const std::string& dotted) {
  return dotted.substr(dotted.rfind('.') + 1);
}

template <class Matches>
std::optional<at::ScalarType> find_dtype(const Matches& matches) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::Undefined); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (matches(std::string(c10::toString(dtype)))) {
      return dtype;
    }
  }
  return std::nullopt;
}

/// Python's newer dtypes have LibTorch's names in lower case.
at::ScalarType dtype_of_name(const std::string& dotted) {
  const auto name = last_part(dotted);
  const auto dtype = find_dtype([&name](std::string candidate) {
    std::transform(candidate.begin(),
                   candidate.end(),
                   candidate.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    return candidate == name;
  });
  TORCH_CHECK(dtype, "it holds a tensor of unknown dtype ", name);
  return *dtype;
}

std::vector<int64_t> integers(const c10::IValue& value) {
  TORCH_CHECK(value.isTuple(), kNoTensor);
  std::vector<int64_t> result;
  for (const auto& element : value.toTupleRef().elements()) {
    TORCH_CHECK(element.isInt() && element.toInt() >= 0, kNoTensor);
    result.push_back(element.toInt());
  }
  return result;
}

/// Bytes from the start of the storage to the end of the last element.
int64_t reach(int64_t offset,
              at::IntArrayRef sizes,
              at::IntArrayRef strides,
              int64_t element_size) {
  int64_t last = offset;
  bool overflow = offset < 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      return 0;
    }
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  overflow |= __builtin_add_overflow(last, 1, &last);
  overflow |= __builtin_mul_overflow(last, element_size, &last);
  TORCH_CHECK(!overflow, kNoTensor);
  return last;
}

}  // namespace

std::optional<at::ScalarType> dtype_of_storage(const std::string& dotted) {
  const auto name = last_part(dotted);
  if (name == "UntypedStorage") {
    return at::kByte;
  }
  return find_dtype([&name](const std::string& candidate) {
    return candidate + "Storage" == name;
  });
}

at::Tensor reinterpret(const at::Tensor& bytes, at::ScalarType dtype) {
  const auto count = bytes.numel() / static_cast<int64_t>(elementSize(dtype));
  return at::empty({0}, dtype).set_(bytes.storage(), 0, {count}, {1});
}

at::Tensor rebuild_tensor(const std::vector<c10::IValue>& arguments,
                          const std::string& dtype) {
  TORCH_CHECK(
      arguments.size() >= 4 && arguments[0].isTensor() && arguments[1].isInt(),
      kNoTensor);
  const auto& flat = arguments[0].toTensor();
  const int64_t offset = arguments[1].toInt();
  const auto sizes = integers(arguments[2]);
  const auto strides = integers(arguments[3]);
  TORCH_CHECK(sizes.size() == strides.size(), kNoTensor);
  const auto type = dtype.empty() ? flat.scalar_type() : dtype_of_name(dtype);
  const auto element = static_cast<int64_t>(elementSize(type));
  TORCH_CHECK(reach(offset, sizes, strides, element) <=
                  static_cast<int64_t>(flat.storage().nbytes()),
              "it holds a tensor that is larger than its data");
  return at::empty({0}, type).set_(flat.storage(), offset, sizes, strides);
}

}  // namespace ddp::detail
