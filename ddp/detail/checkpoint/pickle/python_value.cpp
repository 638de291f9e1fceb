#include "ddp/detail/checkpoint/pickle/python_value.h"

#include <cstring>
#include <utility>

#include "ddp/detail/checkpoint/pickle/pickle_stack.h"
#include "ddp/detail/checkpoint/pickle/rebuild_tensor.h"

namespace ddp::detail {
namespace {

using c10::IValue;

/// A class, a function, or an instance that we do not build.
struct PythonObject : torch::CustomClassHolder {
  explicit PythonObject(std::string name) : name(std::move(name)) {}
  std::string name;
};

bool is_key(const IValue& value) {
  return value.isInt() || value.isString() || value.isDouble() ||
         value.isBool();
}

}  // namespace

IValue python_object(const std::string& name) {
  return IValue::make_capsule(c10::make_intrusive<PythonObject>(name));
}

std::string name_of(const IValue& value) {
  if (!value.isCapsule()) {
    return "";
  }
  return c10::static_intrusive_pointer_cast<PythonObject>(value.toCapsule())
      ->name;
}

IValue new_dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

IValue new_list() {
  return c10::impl::GenericList(c10::AnyType::get());
}

IValue python_int(std::string_view bytes) {
  if (bytes.size() > sizeof(int64_t)) {
    return python_object("int");
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
  for (size_t i = 0; i < items.size(); i += 2) {
    if (is_key(items[i])) {
      dict.insert_or_assign(items[i], items[i + 1]);
    }
  }
}

IValue call_python(const std::string& function,
                   const std::vector<IValue>& arguments) {
  if (function == "collections.OrderedDict" ||
      function == "collections.defaultdict" ||
      function == "collections.Counter") {
    return new_dict();
  }
  if (function == "torch._utils._rebuild_tensor_v2") {
    return rebuild_tensor(arguments);
  }
  if (function == "torch._utils._rebuild_tensor_v3") {
    TORCH_CHECK(arguments.size() >= 7, kDamagedPickle);
    return rebuild_tensor(arguments, name_of(arguments[6]));
  }
  if (function == "torch.Size" ||
      function == "torch._utils._rebuild_parameter" ||
      function == "torch._utils._rebuild_parameter_with_state") {
    TORCH_CHECK(!arguments.empty(), kDamagedPickle);
    return arguments[0];
  }
  if (function == "torch._tensor._rebuild_from_type_v2") {
    TORCH_CHECK(arguments.size() >= 3 && arguments[2].isTuple(),
                kDamagedPickle);
    return call_python(name_of(arguments[0]),
                       arguments[2].toTupleRef().elements());
  }
  return python_object(function);
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
                                                    : "value of another kind");
}

}  // namespace ddp::detail
