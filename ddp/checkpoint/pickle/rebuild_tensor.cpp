#include "ddp/checkpoint/pickle/rebuild_tensor.h"

#include <optional>
#include <string>

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>

#include "ddp/checkpoint/pickle/dtype_names.h"
#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

constexpr const char* kNoTensor = "it describes a tensor wrongly";
// Maximum number of dimensions that LibTorch's operators support.
constexpr size_t kMaxDimensions = 64;

std::vector<int64_t> integers(const c10::IValue& value) {
  TORCH_CHECK(value.isTuple(), kNoTensor);
  const auto& elements = value.toTupleRef().elements();
  TORCH_CHECK(elements.size() <= kMaxDimensions,
              "it holds a tensor of ",
              elements.size(),
              " dimensions, of which ",
              kMaxDimensions,
              " are the most");
  std::vector<int64_t> result;
  for (const auto& element : elements) {
    TORCH_CHECK(element.isInt() && element.toInt() >= 0, kNoTensor);
    result.push_back(element.toInt());
  }
  return result;
}

/// Returns the number of bytes from the start of the storage to the end of the
/// last element.
int64_t reach(int64_t offset,
              at::IntArrayRef sizes,
              at::IntArrayRef strides,
              int64_t element_size) {
  int64_t last = offset;
  int64_t count = 1;
  bool overflow = offset < 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      return 0;
    }
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(count, sizes[i], &count);
    overflow |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  overflow |= __builtin_add_overflow(last, 1, &last);
  overflow |= __builtin_mul_overflow(last, element_size, &last);
  overflow |= __builtin_mul_overflow(count, element_size, &count);
  TORCH_CHECK(!overflow, kNoTensor);
  return last;
}

/// Sets the bits of {'conj': True}, {'neg': True} or both: the storage then
/// holds the conjugates or the negatives of the tensor's elements.
void set_metadata(const at::Tensor& tensor, const c10::IValue& metadata) {
  TORCH_CHECK(metadata.isGenericDict(), kNoTensor);
  for (const auto& item : metadata.toGenericDict()) {
    TORCH_CHECK(item.key().isString(), kNoTensor);
    const auto& name = item.key().toStringRef();
    TORCH_CHECK(name == "conj" || name == "neg",
                "it holds a tensor with the unknown metadata \"",
                name,
                "\"");
    TORCH_CHECK(item.value().isBool() && item.value().toBool(), kNoTensor);
    if (name == "conj") {
      TORCH_CHECK(tensor.is_complex(), kNoTensor);
      tensor._set_conj(true);
    } else {
      TORCH_CHECK(tensor.scalar_type() != at::kBool, kNoTensor);
      tensor._set_neg(true);
    }
  }
}

at::Tensor make_tensor(c10::ArrayRef<c10::IValue> arguments,
                       std::optional<at::ScalarType> dtype,
                       const c10::IValue& metadata) {
  const auto bytes = content_of(arguments[0]);
  TORCH_CHECK(bytes.isTensor() && arguments[1].isInt() && dtype, kNoTensor);
  TORCH_CHECK(!c10::isQIntType(*dtype), "it holds a quantized tensor");
  const auto& storage = bytes.toTensor().storage();
  const int64_t offset = arguments[1].toInt();
  const auto sizes = integers(arguments[2]);
  const auto strides = integers(arguments[3]);
  TORCH_CHECK(offset >= 0 && sizes.size() == strides.size(), kNoTensor);
  const auto element = static_cast<int64_t>(elementSize(*dtype));
  TORCH_CHECK(reach(offset, sizes, strides, element) <=
                  static_cast<int64_t>(storage.nbytes()),
              "it holds a tensor that is larger than its data");
  auto tensor = at::empty({0}, *dtype).set_(storage, offset, sizes, strides);
  if (!metadata.isNone()) {
    set_metadata(tensor, metadata);
  }
  return tensor;
}

}  // namespace

at::Tensor rebuild_tensor_v2(c10::ArrayRef<c10::IValue> arguments) {
  // The oldest files omit requires_grad and hooks.
  TORCH_CHECK(arguments.size() >= 4 && arguments.size() <= 7, kNoTensor);
  return make_tensor(arguments,
                     dtype_of_storage(name_of(arguments[0])),
                     arguments.size() > 6 ? arguments[6] : c10::IValue());
}

at::Tensor rebuild_tensor_v3(c10::ArrayRef<c10::IValue> arguments) {
  TORCH_CHECK(arguments.size() == 7 || arguments.size() == 8, kNoTensor);
  const auto name = name_of(arguments[6]);
  const auto dtype = dtype_of_name(name);
  TORCH_CHECK(dtype, "it holds a tensor of unknown dtype ", name);
  return make_tensor(
      arguments, dtype, arguments.size() > 7 ? arguments[7] : c10::IValue());
}

}  // namespace ddp::detail
