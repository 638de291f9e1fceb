#include "ddp/detail/checkpoint/pickle/dict_reader.h"

#include <cmath>

#include "ddp/detail/checkpoint/pickle/python_value.h"

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

/// A tensor of one element as what it holds.
c10::IValue unpack(const c10::IValue& value) {
  if (!value.isTensor() || value.toTensor().numel() != 1) {
    return value;
  }
  const auto scalar = value.toTensor().item();
  return scalar.isIntegral(/*includeBool=*/false)
             ? c10::IValue(scalar.toLong())
             : c10::IValue(scalar.toDouble());
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
  const bool whole =
      value.isInt() ||
      (value.isDouble() && value.toDouble() == std::floor(value.toDouble()));
  TORCH_CHECK(whole,
              "expected an int as its ",
              place(key),
              ", but got ",
              describe(get(key)));
  return value.isInt() ? value.toInt() : static_cast<int64_t>(value.toDouble());
}

double DictReader::number(const std::string& key) const {
  const auto value = unpack(get(key));
  TORCH_CHECK(value.isDouble() || value.isInt(),
              "expected a number as its ",
              place(key),
              ", but got ",
              describe(get(key)));
  return value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
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
