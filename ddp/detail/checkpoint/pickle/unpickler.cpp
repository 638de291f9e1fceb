#include "ddp/detail/checkpoint/pickle/unpickler.h"

#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/jit/serialization/pickler_helper.h>

#include "ddp/detail/checkpoint/pickle/pickle_stack.h"
#include "ddp/detail/checkpoint/pickle/python_value.h"
#include "ddp/detail/checkpoint/pickle/rebuild_tensor.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using Op = torch::jit::PickleOpCode;

constexpr int kProtocol = 2;  // torch.save's default

class Unpickler {
 public:
  Unpickler(std::string_view bytes, const StorageReader& reader)
      : bytes_(bytes), reader_(reader) {}

  IValue run() {
    TORCH_CHECK(take<Op>() == Op::PROTO, kDamagedPickle);
    const int protocol = take<uint8_t>();
    TORCH_CHECK(protocol == kProtocol,
                "it has pickle protocol ",
                protocol,
                "; save it with torch.save's default, ",
                kProtocol);
    for (Op op = take<Op>(); op != Op::STOP; op = take<Op>()) {
      TORCH_CHECK(push_constant(op) || use_memo(op) || fill_container(op) ||
                      build_object(op),
                  kDamagedPickle);
    }
    return stack_.pop();
  }

 private:
  bool push_constant(Op op) {
    switch (op) {
      case Op::NONE:
        return push(IValue());
      case Op::NEWTRUE:
        return push(true);
      case Op::NEWFALSE:
        return push(false);
      case Op::BININT:
        return push(int64_t{take<int32_t>()});
      case Op::BININT1:
        return push(int64_t{take<uint8_t>()});
      case Op::BININT2:
        return push(int64_t{take<uint16_t>()});
      case Op::LONG1:
        return push(python_int(take_bytes(take<uint8_t>())));
      case Op::BINFLOAT:
        return push(std::bit_cast<double>(__builtin_bswap64(take<uint64_t>())));
      case Op::BINUNICODE:
        return push(std::string(take_bytes(take<uint32_t>())));
      case Op::EMPTY_TUPLE:
        return push(tuple({}));
      case Op::EMPTY_LIST:
        return push(new_list());
      case Op::EMPTY_DICT:
        return push(new_dict());
      default:
        return false;
    }
  }

  bool use_memo(Op op) {
    switch (op) {
      case Op::BINPUT:
        memo_[take<uint8_t>()] = stack_.top();
        return true;
      case Op::LONG_BINPUT:
        memo_[take<uint32_t>()] = stack_.top();
        return true;
      case Op::BINGET:
        return push(recall(take<uint8_t>()));
      case Op::LONG_BINGET:
        return push(recall(take<uint32_t>()));
      default:
        return false;
    }
  }

  bool fill_container(Op op) {
    switch (op) {
      case Op::MARK:
        stack_.mark();
        return true;
      case Op::TUPLE:
        return push(tuple(stack_.pop_to_mark()));
      case Op::TUPLE1:
        return push(tuple(stack_.pop_last(1)));
      case Op::TUPLE2:
        return push(tuple(stack_.pop_last(2)));
      case Op::TUPLE3:
        return push(tuple(stack_.pop_last(3)));
      case Op::APPEND:
        return change(append_items, stack_.pop_last(1));
      case Op::APPENDS:
        return change(append_items, stack_.pop_to_mark());
      case Op::SETITEM:
        return change(set_items, stack_.pop_last(2));
      case Op::SETITEMS:
        return change(set_items, stack_.pop_to_mark());
      default:
        return false;
    }
  }

  bool build_object(Op op) {
    switch (op) {
      case Op::GLOBAL: {
        const auto module = take_line();
        return push(python_object(module + "." + take_line()));
      }
      case Op::NEWOBJ: {
        const auto parts = stack_.pop_last(2);
        return push(python_object(name_of(parts[0])));
      }
      case Op::REDUCE: {
        const auto parts = stack_.pop_last(2);
        TORCH_CHECK(parts[1].isTuple(), kDamagedPickle);
        return push(
            call_python(name_of(parts[0]), parts[1].toTupleRef().elements()));
      }
      case Op::BUILD:  // attributes, such as a state dict's _metadata
        stack_.pop();
        return true;
      case Op::BINPERSID:
        return push(storage(stack_.pop()));
      default:
        return false;
    }
  }

  /// Fills the container that lies below its new items.
  template <class Fill>
  bool change(const Fill& fill, const std::vector<IValue>& items) {
    fill(stack_.top(), items);
    return true;
  }

  /// ("storage", class, key, location, number of elements)
  IValue storage(const IValue& id) {
    TORCH_CHECK(id.isTuple() && id.toTupleRef().elements().size() == 5,
                kDamagedPickle);
    const auto parts = id.toTupleRef().elements().vec();
    TORCH_CHECK(parts[2].isString() && parts[4].isInt(), kDamagedPickle);
    const auto type = name_of(parts[1]);
    const auto dtype = dtype_of_storage(type);
    TORCH_CHECK(dtype, "it holds a tensor of unknown dtype ", type);
    auto& bytes = storages_[parts[2].toStringRef()];
    if (!bytes.defined()) {
      bytes = reader_(parts[2].toStringRef());
    }
    auto flat = reinterpret(bytes, *dtype);
    TORCH_CHECK(flat.numel() == parts[4].toInt() &&
                    flat.numel() * flat.element_size() == bytes.numel(),
                "its record \"data/",
                parts[2].toStringRef(),
                "\" has another size than its pickle says");
    return flat;
  }

  static IValue tuple(std::vector<IValue> elements) {
    return c10::ivalue::Tuple::create(std::move(elements));
  }

  bool push(IValue value) {
    stack_.push(std::move(value));
    return true;
  }

  const IValue& recall(uint32_t id) const {
    const auto found = memo_.find(id);
    TORCH_CHECK(found != memo_.end(), kDamagedPickle);
    return found->second;
  }

  std::string_view take_bytes(size_t size) {
    TORCH_CHECK(size <= bytes_.size(), kDamagedPickle);
    const auto taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  template <class T>
  T take() {
    T value{};
    std::memcpy(&value, take_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string take_line() {
    const auto end = bytes_.find('\n');
    TORCH_CHECK(end != std::string_view::npos, kDamagedPickle);
    const auto line = take_bytes(end + 1);
    return std::string(line.substr(0, end));
  }

  std::string_view bytes_;
  const StorageReader& reader_;
  PickleStack stack_;
  std::unordered_map<uint32_t, IValue> memo_;
  std::unordered_map<std::string, at::Tensor> storages_;
};

}  // namespace

IValue unpickle(std::string_view pickle, const StorageReader& reader) {
  return Unpickler(pickle, reader).run();
}

}  // namespace ddp::detail
