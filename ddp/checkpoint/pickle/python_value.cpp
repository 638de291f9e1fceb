#include "ddp/checkpoint/pickle/python_value.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "ddp/checkpoint/pickle/pickle_stack.h"

namespace ddp::detail {
namespace {

using c10::IValue;

struct PythonObject : torch::CustomClassHolder {
  PythonObject(std::string name, IValue content)
      : name(std::move(name)), content(std::move(content)) {}
  std::string name;
  IValue content;
};

/// Returns null if the value is no `python_object`; only `python_object`
/// creates capsules.
c10::intrusive_ptr<PythonObject> as_object(const IValue& value) {
  return value.isCapsule() ? c10::static_intrusive_pointer_cast<PythonObject>(
                                 value.toCapsule())
                           : nullptr;
}

const std::string kOtherKey = "(a key that is no int, float, bool or str)";

/// Excludes NaN: it equals no key, so c10::Dict would never find a slot for it.
bool is_key(const IValue& value) {
  return value.isInt() || value.isBool() ||
         (value.isDouble() && !std::isnan(value.toDouble())) ||
         (value.isString() && value.toStringRef() != kOtherKey);
}

}  // namespace

IValue python_object(std::string name, IValue content) {
  return IValue::make_capsule(
      c10::make_intrusive<PythonObject>(std::move(name), std::move(content)));
}

std::string name_of(const IValue& value) {
  const auto object = as_object(value);
  return object ? object->name : "";
}

IValue content_of(const IValue& value) {
  const auto object = as_object(value);
  return object ? object->content : IValue();
}

void set_content(const IValue& object, IValue content) {
  as_object(object)->content = std::move(content);
}

IValue new_dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

IValue new_list() {
  return c10::impl::GenericList(c10::AnyType::get());
}

IValue python_int(std::string_view bytes) {
  if (bytes.size() > sizeof(int64_t)) {
    return python_object("int", std::string(bytes));
  }
  const bool negative = !bytes.empty() && static_cast<int8_t>(bytes.back()) < 0;
  int64_t value = negative ? -1 : 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  return value;
}

void append_items(const IValue& container, const std::vector<IValue>& items) {
  if (container.isCapsule()) {
    return;
  }
  TORCH_CHECK(container.isList(), kDamagedPickle);
  auto list = container.toList();
  for (const auto& item : items) {
    list.push_back(item);
  }
}

void set_items(const IValue& container, const std::vector<IValue>& items) {
  if (container.isCapsule()) {
    return;
  }
  TORCH_CHECK(container.isGenericDict() && items.size() % 2 == 0,
              kDamagedPickle);
  auto dict = container.toGenericDict();
  // The table doubles for each key that meets too many others at its place, so
  // thirty keys made for it would take all memory.
  constexpr size_t kMostSlots = 64;  // for each key
  const auto& table = static_cast<const c10::detail::DictImpl*>(
                          static_cast<const c10::intrusive_ptr_target*>(
                              container.internalToPointer()))
                          ->dict;
  for (size_t i = 0; i < items.size(); i += 2) {
    TORCH_CHECK(table.bucket_count() <= kMostSlots * (table.size() + 16),
                kDamagedPickle);
    if (is_key(items[i])) {
      dict.insert_or_assign(items[i], items[i + 1]);
    } else {
      dict.insert_or_assign(kOtherKey, python_object("another kind"));
    }
  }
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

}  // namespace ddp::detail
