#include "ddp/checkpoint/pickle/unpickler.h"

#include <bit>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/jit/serialization/pickler_helper.h>

#include "ddp/checkpoint/pickle/nesting.h"
#include "ddp/checkpoint/pickle/pickle_stack.h"
#include "ddp/checkpoint/pickle/python_call.h"
#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using Op = torch::jit::PickleOpCode;

constexpr Op kByteArray = static_cast<Op>('\x96');  // opcode of protocol 5

constexpr int kOldestProtocol = 2;  // torch.save's default
constexpr int kNewestProtocol = 5;
// Limits memory: many references to one long name would need more than the
// file's size.
constexpr size_t kMaxName = 1000;

class Unpickler {
 public:
  Unpickler(ByteReader& bytes, const StorageReader& reader)
      : bytes_(bytes), storages_(reader), nesting_(2 * bytes.rest().size()) {}

  IValue run() {
    const bool has_protocol = bytes_.number<Op>() == Op::PROTO;
    const int protocol = has_protocol ? bytes_.number<uint8_t>() : 0;
    TORCH_CHECK(protocol >= kOldestProtocol && protocol <= kNewestProtocol,
                "it has pickle protocol ",
                has_protocol ? std::to_string(protocol) : "0 or 1",
                "; save it with torch.save's default, ",
                kOldestProtocol);
    for (Op op = next(); op != Op::STOP; op = next()) {
      TORCH_CHECK(push_number(op) || push_text(op) || push_empty(op) ||
                      use_memo(op) || fill_container(op) || build_object(op),
                  "it has the pickle opcode ",
                  static_cast<int>(static_cast<uint8_t>(op)),
                  ", which torch.save does not write");
    }
    return stack_.pop();
  }

 private:
  Op next() { return bytes_.number<Op>(); }

  bool push_number(Op op) {
    switch (op) {
      case Op::NONE:
        return push(IValue());
      case Op::NEWTRUE:
        return push(true);
      case Op::NEWFALSE:
        return push(false);
      case Op::BININT:
        return push(int64_t{bytes_.number<int32_t>()});
      case Op::BININT1:
        return push(int64_t{bytes_.number<uint8_t>()});
      case Op::BININT2:
        return push(int64_t{bytes_.number<uint16_t>()});
      case Op::LONG1:
        return push(python_int(take<uint8_t>()));
      case Op::LONG4:
        return push(python_int(take<uint32_t>()));
      case Op::BINFLOAT:
        return push(std::bit_cast<double>(
            __builtin_bswap64(bytes_.number<uint64_t>())));
      default:
        return false;
    }
  }

  bool push_text(Op op) {
    switch (op) {
      case Op::SHORT_BINUNICODE:
      case Op::SHORT_BINSTRING:  // Python 2's str
        return push(std::string(take<uint8_t>()));
      case Op::BINUNICODE:
      case Op::BINSTRING:
        return push(std::string(take<uint32_t>()));
      case Op::BINUNICODE8:
        return push(std::string(take<uint64_t>()));
      case Op::SHORT_BINBYTES:
        return push(python_object("bytes", std::string(take<uint8_t>())));
      case Op::BINBYTES:
        return push(python_object("bytes", std::string(take<uint32_t>())));
      case Op::BINBYTES8:
        return push(python_object("bytes", std::string(take<uint64_t>())));
      default:
        return push_byte_array(op);
    }
  }

  /// Separate from the switch, because LibTorch's enum of opcodes lacks this
  /// one.
  bool push_byte_array(Op op) {
    if (op != kByteArray) {
      return false;
    }
    take<uint64_t>();
    return push(python_object("bytearray"));
  }

  bool push_empty(Op op) {
    switch (op) {
      case Op::EMPTY_TUPLE:
        return push(tuple({}));
      case Op::EMPTY_LIST:
        return push(new_list());
      case Op::EMPTY_DICT:
        return push(new_dict());
      case Op::EMPTY_SET:
        return push(python_object("set"));
      case Op::FRAME:  // only a hint for reading ahead
        bytes_.number<uint64_t>();
        return true;
      default:
        return false;
    }
  }

  bool use_memo(Op op) {
    switch (op) {
      case Op::BINPUT:
        memo_[bytes_.number<uint8_t>()] = stack_.top();
        return true;
      case Op::LONG_BINPUT:
        memo_[bytes_.number<uint32_t>()] = stack_.top();
        return true;
      case Op::MEMOIZE:
        memo_[static_cast<uint32_t>(memo_.size())] = stack_.top();
        return true;
      case Op::BINGET:
        return push(recall(bytes_.number<uint8_t>()));
      case Op::LONG_BINGET:
        return push(recall(bytes_.number<uint32_t>()));
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
        return fill(append_items, stack_.pop_last(1));
      case Op::APPENDS:
        return fill(append_items, stack_.pop_to_mark());
      case Op::SETITEM:
        return fill(set_items, stack_.pop_last(2));
      case Op::SETITEMS:
        return fill(set_items, stack_.pop_to_mark());
      case Op::ADDITEMS:  // to a set
        stack_.pop_to_mark();
        return true;
      case Op::FROZENSET:
        stack_.pop_to_mark();
        return push(python_object("frozenset"));
      default:
        return false;
    }
  }

  bool build_object(Op op) {
    switch (op) {
      case Op::GLOBAL: {
        const auto module = bytes_.line();
        return push(global(module, bytes_.line()));
      }
      case Op::STACK_GLOBAL: {
        const auto parts = stack_.pop_last(2);
        TORCH_CHECK(parts[0].isString() && parts[1].isString(), kDamagedPickle);
        return push(global(parts[0].toStringView(), parts[1].toStringView()));
      }
      case Op::NEWOBJ:
        return push(instance(stack_.pop_last(2)[0]));
      case Op::NEWOBJ_EX:
        return push(instance(stack_.pop_last(3)[0]));
      case Op::REDUCE: {
        const auto parts = stack_.pop_last(2);
        TORCH_CHECK(parts[0].isCapsule() && parts[1].isTuple(), kDamagedPickle);
        return push(call_python(
            parts[0], parts[1].toTupleRef().elements().asArrayRef(), nesting_));
      }
      case Op::BUILD: {
        const auto state = stack_.pop();
        set_state(stack_.top(), state);
        return true;
      }
      case Op::BINPERSID:
        return push(storages_.find(stack_.pop()));
      default:
        return false;
    }
  }

  /// Fills the container below its new items on the stack.
  template <class Put>
  bool fill(const Put& put, const std::vector<IValue>& items) {
    nesting_.hold(stack_.top(), items);
    put(stack_.top(), items);
    return true;
  }

  IValue tuple(const std::vector<IValue>& items) {
    IValue result = c10::ivalue::Tuple::create(std::vector<IValue>(items));
    nesting_.hold(result, items);
    return result;
  }

  /// An instance is represented by its class.
  static const IValue& instance(const IValue& type) {
    TORCH_CHECK(type.isCapsule(), kDamagedPickle);
    return type;
  }

  static IValue global(std::string_view module, std::string_view name) {
    TORCH_CHECK(module.size() + name.size() <= kMaxName, kDamagedPickle);
    return python_object(std::string(module) + "." + std::string(name));
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

  /// Reads a byte count of type T, then as many bytes.
  template <class T>
  std::string_view take() {
    return bytes_.bytes(bytes_.number<T>());
  }

  ByteReader& bytes_;
  StorageTable storages_;
  Nesting nesting_;
  PickleStack stack_;
  std::unordered_map<uint32_t, IValue> memo_;
};

}  // namespace

IValue unpickle(ByteReader& bytes, const StorageReader& reader) {
  return Unpickler(bytes, reader).run();
}

}  // namespace ddp::detail
