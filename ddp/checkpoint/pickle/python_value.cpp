#include "ddp/checkpoint/pickle/python_value.h"

#include <cmath>
#include <limits>
#include <utility>

#include <torch/csrc/jit/serialization/pickle.h>

namespace ddp::detail {
namespace {

using c10::IValue;

struct PythonObject : torch::CustomClassHolder {
  PythonObject(std::string name, at::Tensor bytes)
      : name(std::move(name)), bytes(std::move(bytes)) {}
  std::string name;
  at::Tensor bytes;
};

/// Returns null if the value is no `python_object`. The value owns the result.
const PythonObject* as_object(const IValue& value) {
  return value.isCapsule()
             ? dynamic_cast<const PythonObject*>(value.toCapsule().get())
             : nullptr;
}

c10::Dict<IValue, IValue> require_dict(const IValue& value,
                                       const std::string& where) {
  TORCH_CHECK(value.isGenericDict(),
              "expected a dict as its ",
              where,
              ", but got ",
              describe(value));
  return value.toGenericDict();
}

/// Converts a tensor with one number to that number; returns other values as
/// they are.
IValue unpack(const IValue& value) {
  if (!value.isTensor() || value.toTensor().numel() != 1) {
    return value;
  }
  const auto scalar = value.toTensor().item();
  if (scalar.isIntegral(/*includeBool=*/false)) {
    const bool fits =
        !scalar.isUnsigned() ||
        scalar.toUInt64() <= uint64_t{std::numeric_limits<int64_t>::max()};
    return fits ? IValue(scalar.toLong()) : value;
  }
  return scalar.isFloatingPoint() ? IValue(scalar.toDouble()) : value;
}

/// Returns true if the float has an integral value in the range of int64; false
/// for inf and NaN.
bool is_whole(double value) {
  constexpr double kLimit = 0x1p63;
  return value >= -kLimit && value < kLimit && value == std::floor(value);
}

std::optional<double> as_number(const IValue& value) {
  const auto plain = unpack(value);
  if (plain.isInt()) {
    return static_cast<double>(plain.toInt());
  }
  return plain.isDouble() ? std::optional(plain.toDouble()) : std::nullopt;
}

/// Returns a copy of a state with all tensors on the CPU.
IValue on_cpu(const IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().cpu();
  }
  if (value.isGenericDict()) {
    auto dict = new_dict().toGenericDict();
    for (const auto& item : value.toGenericDict()) {
      dict.insert(item.key(), on_cpu(item.value()));
    }
    return dict;
  }
  if (value.isList() || value.isTuple()) {
    auto list = new_list().toList();
    for (const auto& item : value.isList()
                                ? value.toListRef()
                                : value.toTupleRef().elements().asArrayRef()) {
      list.push_back(on_cpu(item));
    }
    return list;
  }
  return value;
}

}  // namespace

IValue python_object(std::string name, at::Tensor bytes) {
  return IValue::make_capsule(
      c10::make_intrusive<PythonObject>(std::move(name), std::move(bytes)));
}

std::string name_of(const IValue& value) {
  const auto* object = as_object(value);
  return object ? object->name : "";
}

at::Tensor bytes_of(const IValue& value) {
  const auto* object = as_object(value);
  return object ? object->bytes : at::Tensor();
}

IValue new_dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

IValue new_list() {
  return c10::impl::GenericList(c10::AnyType::get());
}

std::string to_bytes(const IValue& state) {
  const auto bytes = torch::jit::pickle_save(on_cpu(state));
  return {bytes.begin(), bytes.end()};
}

IValue from_bytes(const std::string& bytes) {
  return torch::jit::pickle_load({bytes.begin(), bytes.end()});
}

std::string describe(const IValue& value) {
  if (value.isCapsule()) {
    return "a Python object of " + name_of(value);
  }
  if (value.isNone()) {
    return "None";
  }
  return "a " + std::string(value.isTensor()        ? "tensor"
                            : value.isGenericDict() ? "dict"
                            : value.isList()        ? "list"
                            : value.isTuple()       ? "tuple"
                            : value.isString()      ? "str"
                            : value.isInt()         ? "int"
                            : value.isBool()        ? "bool"
                            : value.isDouble()      ? "float"
                            : value.isComplexDouble()
                                ? "complex"
                                : "value of another kind");
}

std::optional<at::ScalarType> dtype_of_storage(const std::string& dotted) {
  const auto name = dotted.substr(dotted.rfind('.') + 1);
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

std::optional<std::string> storage_class(at::ScalarType dtype) {
  // Python adds no more storage classes: the last ones are for quantized
  // dtypes.
  const bool has_class =
      dtype <= at::ScalarType::QUInt2x4 && dtype != at::ScalarType::ComplexHalf;
  return has_class
             ? std::optional(std::string(c10::toString(dtype)) + "Storage")
             : std::nullopt;
}

DictReader::DictReader(const IValue& value, std::string where)
    : where_(std::move(where)), dict_(require_dict(value, where_)) {}

bool DictReader::has(const std::string& key) const {
  return dict_.contains(key);
}

bool DictReader::has_value(const std::string& key) const {
  return has(key) && !dict_.at(key).isNone();
}

IValue DictReader::get(const std::string& key) const {
  TORCH_CHECK(has(key), "it has no ", place(key));
  return dict_.at(key);
}

int64_t DictReader::integer(const std::string& key) const {
  const auto value = unpack(get(key));
  expect(value.isInt() || (value.isDouble() && is_whole(value.toDouble())),
         "an int",
         key,
         get(key));
  return value.isInt() ? value.toInt() : static_cast<int64_t>(value.toDouble());
}

double DictReader::number(const std::string& key) const {
  const auto value = as_number(get(key));
  expect(value.has_value(), "a number", key, get(key));
  return *value;
}

std::vector<double> DictReader::numbers(const std::string& key) const {
  std::vector<double> result;
  for (const auto& item : list(key)) {
    const auto value = as_number(item);
    expect(value.has_value(), "numbers", key, item);
    result.push_back(*value);
  }
  return result;
}

bool DictReader::boolean(const std::string& key) const {
  const auto value = get(key);
  expect(value.isBool(), "a bool", key, value);
  return value.toBool();
}

at::Tensor DictReader::tensor(const std::string& key) const {
  const auto value = get(key);
  expect(value.isTensor(), "a tensor", key, value);
  return value.toTensor();
}

std::vector<IValue> DictReader::list(const std::string& key) const {
  const auto value = get(key);
  expect(value.isTuple() || value.isList(), "a list", key, value);
  return value.isTuple() ? value.toTupleRef().elements().vec()
                         : value.toListRef().vec();
}

DictReader DictReader::dict(const std::string& key) const {
  return {get(key), place(key)};
}

std::string DictReader::place(const std::string& key) const {
  return where_ + "[\"" + key + "\"]";
}

void DictReader::expect(bool is_of_type,
                        const char* type,
                        const std::string& key,
                        const IValue& value) const {
  TORCH_CHECK(is_of_type,
              "expected ",
              type,
              " as its ",
              place(key),
              ", but got ",
              describe(value));
}

}  // namespace ddp::detail
