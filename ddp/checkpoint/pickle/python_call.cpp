#include "ddp/checkpoint/pickle/python_call.h"

#include <string>
#include <unordered_map>

#include "ddp/checkpoint/pickle/numpy_scalar.h"
#include "ddp/checkpoint/pickle/pickle_stack.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/rebuild_tensor.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using Arguments = c10::ArrayRef<IValue>;

constexpr const char* kNumpyDtype = "numpy.dtype";
// The longest numpy scalar has 32 bytes; longer contents are not kept.
constexpr size_t kMaxBytes = 64;
constexpr size_t kMaxDtypeName = 16;  // "<f8", "uint16"

/// Handles dict(), dict({...}) and dict([(key, value), ...]). Returns None for
/// other arguments.
IValue make_dict(Arguments arguments, Nesting& nesting) {
  if (arguments.empty()) {
    return new_dict();
  }
  if (arguments[0].isGenericDict()) {
    return arguments[0];
  }
  if (!arguments[0].isList()) {
    return {};
  }
  std::vector<IValue> items;
  for (const auto& pair : arguments[0].toListRef()) {
    const auto both = pair.isTuple() ? pair.toTupleRef().elements().asArrayRef()
                      : pair.isList() ? pair.toListRef()
                                      : Arguments();
    TORCH_CHECK(both.size() == 2, kDamagedPickle);
    items.insert(items.end(), both.begin(), both.end());
  }
  auto dict = new_dict();
  nesting.hold(dict, items);
  set_items(dict, items);
  return dict;
}

/// Ignores the first argument, the factory of missing values.
IValue make_defaultdict(Arguments arguments, Nesting& /*nesting*/) {
  return arguments.size() > 1 ? IValue() : new_dict();
}

IValue first(Arguments arguments, Nesting& /*nesting*/) {
  TORCH_CHECK(!arguments.empty(), kDamagedPickle);
  return arguments[0];
}

IValue make_complex(Arguments arguments, Nesting& /*nesting*/) {
  TORCH_CHECK(arguments.size() == 2 && arguments[0].isDouble() &&
                  arguments[1].isDouble(),
              kDamagedPickle);
  return c10::complex<double>(arguments[0].toDouble(), arguments[1].toDouble());
}

/// _codecs.encode(text, 'latin1'): protocol 2 saves bytes in this form, one
/// letter for each byte.
IValue encode(Arguments arguments, Nesting& /*nesting*/) {
  if (arguments.empty() || !arguments[0].isString() ||
      arguments[0].toStringRef().size() > kMaxBytes) {
    return {};
  }
  std::string bytes;
  const auto& text = arguments[0].toStringRef();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
      continue;
    }
    TORCH_CHECK((lead == 0xC2 || lead == 0xC3) && ++i < text.size(),
                kDamagedPickle);
    bytes += static_cast<char>((lead << 6) | (text[i] & 0x3F));
  }
  return python_object("bytes", bytes);
}

/// Keeps only the name, since a content could be a placeholder in a placeholder
/// without end.
IValue make_numpy_dtype(Arguments arguments, Nesting& /*nesting*/) {
  TORCH_CHECK(!arguments.empty(), kDamagedPickle);
  const bool is_name = arguments[0].isString() &&
                       arguments[0].toStringRef().size() <= kMaxDtypeName;
  return python_object(kNumpyDtype, is_name ? arguments[0] : IValue());
}

/// scalar(dtype, bytes); the bytes are a str if Python 2 wrote the file.
IValue make_numpy_scalar(Arguments arguments, Nesting& /*nesting*/) {
  TORCH_CHECK(arguments.size() == 2, kDamagedPickle);
  const auto dtype = content_of(arguments[0]);
  const auto bytes =
      arguments[1].isString() ? arguments[1] : content_of(arguments[1]);
  return dtype.isString() && bytes.isString()
             ? numpy_scalar(dtype.toStringRef(), bytes.toStringRef())
             : IValue();
}

IValue make_tensor_v2(Arguments arguments, Nesting& /*nesting*/) {
  return rebuild_tensor_v2(arguments);
}

IValue make_tensor_v3(Arguments arguments, Nesting& /*nesting*/) {
  return rebuild_tensor_v3(arguments);
}

using Function = IValue (*)(Arguments, Nesting&);

const std::unordered_map<std::string, Function>& functions() {
  static const std::unordered_map<std::string, Function> all{
      {"collections.OrderedDict", make_dict},
      {"collections.Counter", make_dict},
      {"collections.defaultdict", make_defaultdict},
      {"__builtin__.complex", make_complex},
      {"builtins.complex", make_complex},
      {"_codecs.encode", encode},
      {"numpy.dtype", make_numpy_dtype},
      {"numpy.core.multiarray.scalar", make_numpy_scalar},
      {"numpy._core.multiarray.scalar", make_numpy_scalar},
      {"torch.Size", first},
      {"torch._utils._rebuild_parameter", first},
      {"torch._utils._rebuild_parameter_with_state", first},
      {"torch._utils._rebuild_tensor", make_tensor_v2},
      {"torch._utils._rebuild_tensor_v2", make_tensor_v2},
      {"torch._utils._rebuild_tensor_v3", make_tensor_v3}};
  return all;
}

bool is_rebuild_from_type(const std::string& name) {
  return name == "torch._tensor._rebuild_from_type_v2" ||
         name == "torch.tensor._rebuild_from_type";
}

/// Returns false for user-defined classes, whose elements may have another
/// meaning.
bool is_plain_tensor(const std::string& type) {
  return type == "torch.Tensor" || type == "torch.nn.parameter.Parameter" ||
         type == "torch.nn.parameter.Buffer";
}

}  // namespace

IValue call_python(const IValue& function,
                   Arguments arguments,
                   Nesting& nesting) {
  const auto name = name_of(function);
  if (is_rebuild_from_type(name)) {
    // (function, type, arguments, attributes): a tensor with attributes.
    TORCH_CHECK(arguments.size() >= 3 && arguments[1].isCapsule() &&
                    arguments[2].isTuple() &&
                    !is_rebuild_from_type(name_of(arguments[0])),
                kDamagedPickle);
    return is_plain_tensor(name_of(arguments[1]))
               ? call_python(arguments[0],
                             arguments[2].toTupleRef().elements().asArrayRef(),
                             nesting)
               : arguments[1];
  }
  const auto found = functions().find(name);
  if (found == functions().end()) {
    return function;
  }
  auto result = found->second(arguments, nesting);
  return result.isNone() ? function : result;
}

void set_state(const IValue& object, const IValue& state) {
  TORCH_CHECK(object.isGenericDict() || object.isCapsule(), kDamagedPickle);
  // The state is (version, byte order, ...).
  if (name_of(object) == kNumpyDtype && content_of(object).isString()) {
    TORCH_CHECK(state.isTuple() && state.toTupleRef().elements().size() > 1 &&
                    state.toTupleRef().elements()[1].isString(),
                kDamagedPickle);
    const auto& order = state.toTupleRef().elements()[1].toStringRef();
    const auto content = content_of(object);
    const auto& name = content.toStringRef();
    TORCH_CHECK(order.size() == 1 && name.size() <= kMaxDtypeName,
                kDamagedPickle);
    set_content(object, order + name);
  }
}

}  // namespace ddp::detail
