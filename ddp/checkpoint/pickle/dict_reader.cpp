#include "ddp/checkpoint/pickle/dict_reader.h"

#include <cmath>
#include <limits>
#include <optional>

#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

c10::Dict<c10::IValue, c10::IValue> require_dict(const c10::IValue& value,
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
c10::IValue unpack(const c10::IValue& value) {
  if (!value.isTensor() || value.toTensor().numel() != 1) {
    return value;
  }
  const auto scalar = value.toTensor().item();
  if (scalar.isIntegral(/*includeBool=*/false)) {
    const bool fits =
        !scalar.isUnsigned() ||
        scalar.toUInt64() <= uint64_t{std::numeric_limits<int64_t>::max()};
    return fits ? c10::IValue(scalar.toLong()) : value;
  }
  return scalar.isFloatingPoint() ? c10::IValue(scalar.toDouble()) : value;
}

/// Returns true if the float has an integral value in the range of int64; false
/// for inf and NaN.
bool is_whole(double value) {
  constexpr double kLimit = 0x1p63;
  return value >= -kLimit && value < kLimit && value == std::floor(value);
}

std::optional<double> as_number(const c10::IValue& value) {
  const auto plain = unpack(value);
  if (plain.isInt()) {
    return static_cast<double>(plain.toInt());
  }
  return plain.isDouble() ? std::optional(plain.toDouble()) : std::nullopt;
}

}  // namespace

DictReader::DictReader(const c10::IValue& value, std::string where)
    : where_(std::move(where)), dict_(require_dict(value, where_)) {}

bool DictReader::has(const std::string& key) const {
  return dict_.contains(key);
}

bool DictReader::has_value(const std::string& key) const {
  return has(key) && !dict_.at(key).isNone();
}

c10::IValue DictReader::get(const std::string& key) const {
  TORCH_CHECK(has(key), "it has no ", place(key));
  return dict_.at(key);
}

int64_t DictReader::integer(const std::string& key) const {
  const auto value = unpack(get(key));
  TORCH_CHECK(value.isInt() || (value.isDouble() && is_whole(value.toDouble())),
              "expected an int as its ",
              place(key),
              ", but got ",
              describe(get(key)));
  return value.isInt() ? value.toInt() : static_cast<int64_t>(value.toDouble());
}

double DictReader::number(const std::string& key) const {
  const auto value = as_number(get(key));
  TORCH_CHECK(value,
              "expected a number as its ",
              place(key),
              ", but got ",
              describe(get(key)));
  return *value;
}

std::vector<double> DictReader::numbers(const std::string& key) const {
  std::vector<double> result;
  for (const auto& item : list(key)) {
    const auto value = as_number(item);
    TORCH_CHECK(value,
                "expected numbers as its ",
                place(key),
                ", but got ",
                describe(item));
    result.push_back(*value);
  }
  return result;
}

bool DictReader::boolean(const std::string& key) const {
  const auto value = get(key);
  TORCH_CHECK(value.isBool(),
              "expected a bool as its ",
              place(key),
              ", but got ",
              describe(value));
  return value.toBool();
}

at::Tensor DictReader::tensor(const std::string& key) const {
  const auto value = get(key);
  TORCH_CHECK(value.isTensor(),
              "expected a tensor as its ",
              place(key),
              ", but got ",
              describe(value));
  return value.toTensor();
}

std::vector<c10::IValue> DictReader::list(const std::string& key) const {
  const auto value = get(key);
  if (value.isTuple()) {
    return value.toTupleRef().elements();
  }
  TORCH_CHECK(value.isList(),
              "expected a list as its ",
              place(key),
              ", but got ",
              describe(value));
  const auto items = value.toListRef();
  return std::vector<c10::IValue>(items.begin(), items.end());
}

DictReader DictReader::dict(const std::string& key) const {
  return {get(key), where_ + "[\"" + key + "\"]"};
}

std::string DictReader::place(const std::string& key) const {
  return where_ + "[\"" + key + "\"]";
}

}  // namespace ddp::detail
