#include "ddp/checkpoint/pickle/unpickler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using Arguments = c10::ArrayRef<IValue>;
using Op = torch::jit::PickleOpCode;

constexpr const char* kIncomplete = "its pickle is damaged: it is cut off";
constexpr const char* kDamaged = "its pickle is damaged";
constexpr const char* kNoTensor = "it describes a tensor wrongly";

constexpr Op kByteArray = static_cast<Op>('\x96');  // opcode of protocol 5

constexpr int kOldestProtocol = 2;  // torch.save's default
constexpr int kNewestProtocol = 5;
// Limits memory: many references to one long name would need more than the
// file's size.
constexpr size_t kMaxName = 1000;
// Limits time: a dict hashes each of its keys, and the file may hold a long key
// once. For each byte of the pickle.
constexpr size_t kMaxKeyBytes = 128;
// Maximum number of dimensions that LibTorch's operators support.
constexpr size_t kMaxDimensions = 64;

bool is_container(const IValue& value) {
  return value.isGenericDict() || value.isList() || value.isTuple();
}

const std::string kOtherKey = "(a key that is no int, float, bool or str)";

/// Excludes NaN: it equals no key, so c10::Dict would never find a slot for it.
bool is_key(const IValue& value) {
  return value.isInt() || value.isBool() ||
         (value.isDouble() && !std::isnan(value.toDouble())) ||
         (value.isString() && value.toStringRef() != kOtherKey);
}

/// Returns the int of a LONG1 or LONG4, little endian; a placeholder if it has
/// more than 64 bits.
IValue make_int(std::string_view bytes) {
  if (bytes.size() > sizeof(int64_t)) {
    return python_object("int");
  }
  const bool negative = !bytes.empty() && static_cast<int8_t>(bytes.back()) < 0;
  int64_t value = negative ? -1 : 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  return value;
}

std::vector<int64_t> integers(const IValue& value) {
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
void set_metadata(const at::Tensor& tensor, const IValue& metadata) {
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

/// Returns the result of torch._utils._rebuild_tensor_v2 with the arguments
/// (storage, offset, sizes, strides, requires_grad, hooks[, metadata]), or, for
/// the newer dtypes, of _rebuild_tensor_v3, which has the dtype before the
/// metadata.
at::Tensor rebuild_tensor(Arguments arguments, bool has_dtype) {
  const size_t fixed = has_dtype ? 7 : 6;
  TORCH_CHECK(arguments.size() == fixed || arguments.size() == fixed + 1,
              kNoTensor);
  auto dtype = dtype_of_storage(name_of(arguments[0]));
  if (has_dtype) {
    const auto name = name_of(arguments[6]);
    const auto& names = c10::getStringToDtypeMap();
    const auto found = names.find(name.substr(name.rfind('.') + 1));
    TORCH_CHECK(
        found != names.end(), "it holds a tensor of unknown dtype ", name);
    dtype = found->second;
  }
  const auto bytes = bytes_of(arguments[0]);
  TORCH_CHECK(bytes.defined() && arguments[1].isInt() && dtype, kNoTensor);
  TORCH_CHECK(!c10::isQIntType(*dtype), "it holds a quantized tensor");
  const int64_t offset = arguments[1].toInt();
  const auto sizes = integers(arguments[2]);
  const auto strides = integers(arguments[3]);
  TORCH_CHECK(offset >= 0 && sizes.size() == strides.size(), kNoTensor);
  const auto element_size = static_cast<int64_t>(c10::elementSize(*dtype));
  TORCH_CHECK(reach(offset, sizes, strides, element_size) <= bytes.numel(),
              "it holds a tensor that is larger than its data");
  auto tensor =
      at::empty({0}, *dtype).set_(bytes.storage(), offset, sizes, strides);
  if (arguments.size() > fixed) {
    set_metadata(tensor, arguments[fixed]);
  }
  return tensor;
}

/// Returns false for user-defined classes: their elements may have another
/// meaning.
bool is_plain_tensor(const std::string& type) {
  return type == "torch.Tensor" || type == "torch.nn.parameter.Parameter" ||
         type == "torch.nn.parameter.Buffer";
}

bool is_rebuild_from_type(const std::string& name) {
  return name == "torch._tensor._rebuild_from_type_v2" ||
         name == "torch.tensor._rebuild_from_type";
}

/// Returns the result of a function or class that a pickle calls, if the call
/// creates a tensor, dict or complex number. For any other function the
/// result is the function itself, as a placeholder of its result.
IValue call(const IValue& function, Arguments arguments) {
  const auto name = name_of(function);
  if (name == "torch._utils._rebuild_tensor_v2") {
    return rebuild_tensor(arguments, /*has_dtype=*/false);
  }
  if (name == "torch._utils._rebuild_tensor_v3") {
    return rebuild_tensor(arguments, /*has_dtype=*/true);
  }
  if (is_rebuild_from_type(name)) {
    // (function, type, arguments, attributes): a tensor with attributes.
    TORCH_CHECK(arguments.size() >= 3 && arguments[1].isCapsule() &&
                    arguments[2].isTuple() &&
                    !is_rebuild_from_type(name_of(arguments[0])),
                kDamaged);
    return is_plain_tensor(name_of(arguments[1]))
               ? call(arguments[0],
                      arguments[2].toTupleRef().elements().asArrayRef())
               : arguments[1];
  }
  if (name == "torch.Size" || name == "torch._utils._rebuild_parameter" ||
      name == "torch._utils._rebuild_parameter_with_state") {
    TORCH_CHECK(!arguments.empty(), kDamaged);
    return arguments[0];
  }
  if (name == "builtins.complex" || name == "__builtin__.complex") {
    TORCH_CHECK(arguments.size() == 2 && arguments[0].isDouble() &&
                    arguments[1].isDouble(),
                kDamaged);
    return c10::complex<double>(arguments[0].toDouble(),
                                arguments[1].toDouble());
  }
  if ((name == "collections.OrderedDict" && arguments.empty()) ||
      (name == "collections.defaultdict" && arguments.size() <= 1)) {
    return new_dict();
  }
  if (name == "collections.Counter" && arguments.size() == 1 &&
      arguments[0].isGenericDict()) {
    return arguments[0];
  }
  return function;
}

class Unpickler {
 public:
  Unpickler(std::string_view pickle, const StorageReader& reader)
      : rest_(pickle),
        reader_(reader),
        key_bytes_left_(kMaxKeyBytes * pickle.size()) {}

  IValue run() {
    const bool has_protocol = number<Op>() == Op::PROTO;
    const int protocol = has_protocol ? number<uint8_t>() : 0;
    TORCH_CHECK(protocol >= kOldestProtocol && protocol <= kNewestProtocol,
                "it has pickle protocol ",
                has_protocol ? std::to_string(protocol) : "0 or 1",
                "; save it with torch.save's default, ",
                kOldestProtocol);
    for (Op op = number<Op>(); op != Op::STOP; op = number<Op>()) {
      TORCH_CHECK(
          push_scalar(op) || use_memo(op) || fill_container(op) || make(op),
          "it has the pickle opcode ",
          static_cast<int>(static_cast<uint8_t>(op)),
          ", which torch.save does not write");
    }
    TORCH_CHECK(rest_.empty(), kDamaged);
    return pop();
  }

 private:
  bool push_scalar(Op op) {
    switch (op) {
      case Op::NONE:
        return push({});
      case Op::NEWTRUE:
        return push(true);
      case Op::NEWFALSE:
        return push(false);
      case Op::BININT:
        return push(int64_t{number<int32_t>()});
      case Op::BININT1:
        return push(int64_t{number<uint8_t>()});
      case Op::BININT2:
        return push(int64_t{number<uint16_t>()});
      case Op::LONG1:
        return push(make_int(counted<uint8_t>()));
      case Op::LONG4:
        return push(make_int(counted<uint32_t>()));
      case Op::BINFLOAT:
        return push(
            std::bit_cast<double>(__builtin_bswap64(number<uint64_t>())));
      case Op::SHORT_BINUNICODE:
        return push(std::string(counted<uint8_t>()));
      case Op::BINUNICODE:
        return push(std::string(counted<uint32_t>()));
      case Op::BINUNICODE8:
        return push(std::string(counted<uint64_t>()));
      case Op::SHORT_BINBYTES:
        return push_opaque("bytes", counted<uint8_t>());
      case Op::BINBYTES:
        return push_opaque("bytes", counted<uint32_t>());
      case Op::BINBYTES8:
        return push_opaque("bytes", counted<uint64_t>());
      default:  // LibTorch's enum of opcodes lacks this one
        return op == kByteArray &&
               push_opaque("bytearray", counted<uint64_t>());
    }
  }

  bool use_memo(Op op) {
    switch (op) {
      case Op::BINPUT:
        return memoize(number<uint8_t>());
      case Op::LONG_BINPUT:
        return memoize(number<uint32_t>());
      case Op::MEMOIZE:
        return memoize(static_cast<uint32_t>(memo_.size()));
      case Op::BINGET:
        return recall(number<uint8_t>());
      case Op::LONG_BINGET:
        return recall(number<uint32_t>());
      case Op::FRAME:  // only a hint for reading ahead
        number<uint64_t>();
        return true;
      default:
        return false;
    }
  }

  bool fill_container(Op op) {
    switch (op) {
      case Op::MARK:
        frames_.emplace_back();
        return true;
      case Op::EMPTY_TUPLE:
        return push_tuple({});
      case Op::TUPLE:
        return push_tuple(pop_to_mark());
      case Op::TUPLE1:
        return push_tuple(pop_last(1));
      case Op::TUPLE2:
        return push_tuple(pop_last(2));
      case Op::TUPLE3:
        return push_tuple(pop_last(3));
      case Op::EMPTY_LIST:
        return push(new_list());
      case Op::APPEND:
        return append(pop_last(1));
      case Op::APPENDS:
        return append(pop_to_mark());
      case Op::EMPTY_DICT:
        return push(new_dict());
      case Op::SETITEM:
        return set_items(pop_last(2));
      case Op::SETITEMS:
        return set_items(pop_to_mark());
      case Op::EMPTY_SET:
        return push(python_object("set"));
      case Op::ADDITEMS:  // to a set
        pop_to_mark();
        return true;
      case Op::FROZENSET:
        return push_opaque("frozenset", pop_to_mark());
      default:
        return false;
    }
  }

  bool make(Op op) {
    switch (op) {
      case Op::GLOBAL: {
        const auto module = line();
        return push_global(module, line());
      }
      case Op::STACK_GLOBAL: {
        const auto parts = pop_last(2);
        TORCH_CHECK(parts[0].isString() && parts[1].isString(), kDamaged);
        return push_global(parts[0].toStringView(), parts[1].toStringView());
      }
      case Op::NEWOBJ:
        return push_instance(pop_last(2)[0]);
      case Op::NEWOBJ_EX:
        return push_instance(pop_last(3)[0]);
      case Op::REDUCE: {
        const auto parts = pop_last(2);
        TORCH_CHECK(parts[0].isCapsule() && parts[1].isTuple(), kDamaged);
        return push(
            call(parts[0], parts[1].toTupleRef().elements().asArrayRef()));
      }
      case Op::BUILD:  // drops the state, such as a state dict's `_metadata`
        pop();
        TORCH_CHECK(top().isGenericDict() || top().isCapsule(), kDamaged);
        return true;
      case Op::BINPERSID:
        return push(find_storage(pop()));
      default:
        return false;
    }
  }

  /// Pushes a placeholder, which drops the content.
  template <class Content>
  bool push_opaque(const char* type, const Content& /*content*/) {
    return push(python_object(type));
  }

  bool push_tuple(std::vector<IValue> items) {
    IValue tuple = c10::ivalue::Tuple::create(std::move(items));
    hold(tuple, tuple.toTupleRef().elements().asArrayRef());
    return push(std::move(tuple));
  }

  /// A placeholder drops its items.
  bool append(const std::vector<IValue>& items) {
    if (top().isCapsule()) {
      return true;
    }
    TORCH_CHECK(top().isList(), kDamaged);
    hold(top(), items);
    auto list = top().toList();
    for (const auto& item : items) {
      list.push_back(item);
    }
    return true;
  }

  /// Inserts alternating keys and values. Items with keys other than int,
  /// float, bool or str become a single placeholder under a name that describes
  /// them. A placeholder as the container drops its items.
  bool set_items(const std::vector<IValue>& items) {
    if (top().isCapsule()) {
      return true;
    }
    TORCH_CHECK(top().isGenericDict() && items.size() % 2 == 0, kDamaged);
    hold(top(), items);
    auto dict = top().toGenericDict();
    // The table doubles for each key that meets too many others at its place,
    // so thirty keys made for it would take all memory.
    constexpr size_t kMostSlots = 64;  // for each key
    const auto& table = static_cast<const c10::detail::DictImpl*>(
                            static_cast<const c10::intrusive_ptr_target*>(
                                top().internalToPointer()))
                            ->dict;
    for (size_t i = 0; i < items.size(); i += 2) {
      const IValue& key = items[i];
      const size_t length = key.isString() ? key.toStringRef().size() : 0;
      TORCH_CHECK(length <= key_bytes_left_ &&
                      table.bucket_count() <= kMostSlots * (table.size() + 16),
                  kDamaged);
      key_bytes_left_ -= length;
      if (is_key(key)) {
        dict.insert_or_assign(key, items[i + 1]);
      } else {
        dict.insert_or_assign(kOtherKey, python_object("another kind"));
      }
    }
    return true;
  }

  bool push_global(std::string_view module, std::string_view name) {
    TORCH_CHECK(module.size() + name.size() <= kMaxName, kDamaged);
    return push(python_object(std::string(module) + "." + std::string(name)));
  }

  /// An instance is represented by its class.
  bool push_instance(const IValue& type) {
    TORCH_CHECK(type.isCapsule(), kDamaged);
    return push(type);
  }

  /// Resolves a persistent id, ("storage", class, key, location, count), to a
  /// placeholder with the class as its name and the storage's bytes.
  IValue find_storage(const IValue& id) {
    TORCH_CHECK(id.isTuple(), kDamaged);
    const auto parts = id.toTupleRef().elements().asArrayRef();
    TORCH_CHECK(parts.size() == 5 && parts[0].isString() &&
                    parts[0].toStringRef() == "storage" &&
                    parts[2].isString() && parts[4].isInt() &&
                    parts[4].toInt() >= 0,
                kDamaged);
    const auto type = name_of(parts[1]);
    const auto dtype = dtype_of_storage(type);
    TORCH_CHECK(dtype, "it holds a tensor of unknown dtype ", type);
    const auto& key = parts[2].toStringRef();
    auto& storage = storages_[key];
    if (!storage.bytes.defined()) {
      const auto size = static_cast<int64_t>(c10::elementSize(*dtype));
      storage = {reader_(key, parts[4].toInt(), size), *dtype};
    }
    TORCH_CHECK(storage.dtype == *dtype || storage.bytes.numel() == 0,
                "it gives storage ",
                key,
                " two dtypes, ",
                storage.dtype,
                " and ",
                *dtype);
    return python_object(type, storage.bytes);
  }

  /// Registers that a container gets `items`: for a dict its keys and values
  /// alternately.
  ///
  /// A container that is already an item of another container may not be filled
  /// any more: Python completes each container first, unless one contains
  /// itself.
  void hold(const IValue& container, Arguments items) {
    Node& outer = node(container);
    for (const auto& item : items) {
      if (is_container(item)) {
        Node& inner = node(item);
        inner.is_held = true;
        outer.depth = std::max(outer.depth, inner.depth + 1);
      }
    }
    TORCH_CHECK(!outer.is_held, "it holds a value that contains itself");
    TORCH_CHECK(outer.depth <= kMaxDepth,
                "it nests values deeper than ",
                kMaxDepth,
                " levels");
  }

  struct Node {
    IValue container;  // owned, so that its address is not reused
    int depth = 1;
    bool is_held = false;
  };

  Node& node(const IValue& container) {
    Node& found = nodes_[container.internalToPointer()];
    found.container = container;
    return found;
  }

  bool memoize(uint32_t id) {
    memo_[id] = top();
    return true;
  }

  bool recall(uint32_t id) {
    const auto found = memo_.find(id);
    TORCH_CHECK(found != memo_.end(), kDamaged);
    return push(found->second);
  }

  bool push(IValue value) {
    frames_.back().push_back(std::move(value));
    return true;
  }

  /// Values below the last mark are inaccessible.
  const IValue& top() const {
    TORCH_CHECK(!frames_.back().empty(), kDamaged);
    return frames_.back().back();
  }

  IValue pop() { return std::move(pop_last(1)[0]); }

  /// Removes and returns the last `count` values, oldest first.
  std::vector<IValue> pop_last(size_t count) {
    auto& values = frames_.back();
    TORCH_CHECK(values.size() >= count, kDamaged);
    const auto first = values.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<IValue> items(first, values.end());
    values.erase(first, values.end());
    return items;
  }

  /// Removes the last mark and the values above it, and returns the values.
  std::vector<IValue> pop_to_mark() {
    TORCH_CHECK(frames_.size() > 1, kDamaged);
    auto items = std::move(frames_.back());
    frames_.pop_back();
    return items;
  }

  std::string_view bytes(uint64_t size) {
    TORCH_CHECK(size <= rest_.size(), kIncomplete);
    const auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }

  /// Reads a byte count of type T, then as many bytes.
  template <class T>
  std::string_view counted() {
    return bytes(number<T>());
  }

  /// Reads a line and its end; returns it without the end.
  std::string_view line() {
    const auto end = rest_.find('\n');
    TORCH_CHECK(end != std::string_view::npos, kIncomplete);
    return bytes(end + 1).substr(0, end);
  }

  struct Storage {
    at::Tensor bytes;
    at::ScalarType dtype = at::ScalarType::Undefined;
  };

  std::string_view rest_;  // of the pickle
  const StorageReader& reader_;
  std::unordered_map<std::string, Storage> storages_;
  std::vector<std::vector<IValue>> frames_{1};  // the stack; a frame per mark
  std::unordered_map<uint32_t, IValue> memo_;
  std::unordered_map<const void*, Node> nodes_;
  size_t key_bytes_left_;
};

}  // namespace

IValue unpickle(std::string_view pickle, const StorageReader& reader) {
  return Unpickler(pickle, reader).run();
}

}  // namespace ddp::detail
