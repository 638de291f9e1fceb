#include "ddp/checkpoint/pickle/pickler.h"

#include <bit>
#include <iomanip>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include "ddp/checkpoint/pickle/deferred_tensor.h"
#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using Op = torch::jit::PickleOpCode;

constexpr uint8_t kPickleProtocol = 2;

void check_dense(const at::Tensor& tensor, const std::string& place) {
  TORCH_CHECK(tensor.defined() && tensor.layout() == at::kStrided &&
                  tensor.has_storage() && !tensor.is_meta() &&
                  !tensor.is_quantized() && !tensor.is_nested() &&
                  !tensor._is_zerotensor(),
              "expected dense tensors with data, but got ",
              tensor.toString(),
              place.empty() ? "" : " under " + place);
}

class Pickler {
 public:
  Pickled run(const IValue& value) {
    op(Op::PROTO);
    number(kPickleProtocol);
    write(value);
    op(Op::STOP);
    return {std::move(bytes_), std::move(storages_)};
  }

 private:
  using Read = std::function<at::Tensor()>;

  void write(const IValue& value) {
    if (value.isTensor()) {
      check_dense(value.toTensor(), place_);
      write_tensor(value.toTensor(), nullptr);
    } else if (const auto deferred = as_deferred(value)) {
      write_tensor(deferred->like(), [deferred] { return deferred->read(); });
    } else if (value.isGenericDict()) {
      write_dict(value.toGenericDict());
    } else if (value.isList()) {
      op(Op::EMPTY_LIST);
      op(Op::MARK);
      write_items(value.toListRef());
      op(Op::APPENDS);
    } else if (value.isTuple()) {
      write_tuple(value.toTupleRef().elements().vec());
    } else {
      write_scalar(value);
    }
  }

  void write_scalar(const IValue& value) {
    if (value.isNone()) {
      op(Op::NONE);
    } else if (value.isBool()) {
      op(value.toBool() ? Op::NEWTRUE : Op::NEWFALSE);
    } else if (value.isInt()) {
      write_int(value.toInt());
    } else if (value.isDouble()) {
      op(Op::BINFLOAT);
      number(__builtin_bswap64(std::bit_cast<uint64_t>(value.toDouble())));
    } else if (value.isComplexDouble()) {
      const auto parts = value.toComplexDouble();
      write_global("builtins", "complex");
      write_tuple({parts.real(), parts.imag()});
      op(Op::REDUCE);
    } else {
      TORCH_CHECK(value.isString(),
                  "expected None, bool, int, float, complex, str, list, tuple, "
                  "dict or tensor, but got ",
                  describe(value),
                  place_.empty() ? "" : " under " + place_);
      write_text(value.toStringRef());
    }
  }

  void write_int(int64_t value) {
    if (value == static_cast<int32_t>(value)) {
      op(Op::BININT);
      number(static_cast<int32_t>(value));
    } else {
      op(Op::LONG1);
      number(static_cast<uint8_t>(sizeof(value)));
      number(value);
    }
  }

  void write_text(const std::string& text) {
    TORCH_CHECK(text.size() <= std::numeric_limits<uint32_t>::max(),
                "expected a str of less than 4 GiB");
    op(Op::BINUNICODE);
    number(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }

  void write_dict(const c10::Dict<IValue, IValue>& dict) {
    op(Op::EMPTY_DICT);
    op(Op::MARK);
    for (const auto& item : dict) {
      const auto length = place_.size();
      place_ += c10::str("[", std::quoted(c10::str(item.key())), "]");
      write(item.key());
      write(item.value());
      place_.resize(length);
    }
    op(Op::SETITEMS);
  }

  void write_tuple(const std::vector<IValue>& items) {
    op(Op::MARK);
    write_items(items);
    op(Op::TUPLE);
  }

  void write_items(at::ArrayRef<IValue> items) {
    for (const IValue& item : items) {
      write(item);
    }
  }

  void write_sizes(at::IntArrayRef sizes) {
    write_tuple(std::vector<IValue>(sizes.begin(), sizes.end()));
  }

  /// Writes the call that `rebuild_tensor` in unpickler.cpp describes.
  /// @param read  as that of `write_storage`.
  void write_tensor(const at::Tensor& tensor, const Read& read) {
    const auto dtype = tensor.scalar_type();
    const bool has_class = storage_class(dtype).has_value();
    write_global("torch._utils",
                 has_class ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    op(Op::MARK);
    write_storage(
        tensor.storage(), has_class ? dtype : at::kByte, has_class, read);
    write_int(tensor.storage_offset());
    write_sizes(tensor.sizes());
    write_sizes(tensor.strides());
    op(Op::NEWFALSE);  // requires_grad
    write_global("collections", "OrderedDict");
    op(Op::EMPTY_TUPLE);
    op(Op::REDUCE);  // hooks
    if (!has_class) {
      write_global("torch", std::string(c10::getDtypeNames(dtype).first));
    }
    write_metadata(tensor);
    op(Op::TUPLE);
    op(Op::REDUCE);
  }

  void write_metadata(const at::Tensor& tensor) {
    auto metadata = new_dict().toGenericDict();
    if (tensor.is_conj()) {
      metadata.insert("conj", true);
    }
    if (tensor.is_neg()) {
      metadata.insert("neg", true);
    }
    if (!metadata.empty()) {
      write_dict(metadata);
    }
  }

  /// @param read  returns the bytes; null if the storage has them.
  void write_storage(const c10::Storage& storage,
                     at::ScalarType dtype,
                     bool has_class,
                     const Read& read) {
    const auto count = storage.nbytes() / c10::elementSize(dtype);
    op(Op::MARK);
    write_text("storage");
    write_global(has_class ? "torch" : "torch.storage",
                 has_class ? *storage_class(dtype) : "UntypedStorage");
    write_text(std::to_string(number_of(storage, dtype, read)));
    write_text("cpu");
    write_int(static_cast<int64_t>(count));
    op(Op::TUPLE);
    op(Op::BINPERSID);
  }

  /// Returns the number of a storage. Its tensors continue to share it. Tensors
  /// of two dtypes cannot: a file gives each storage one dtype.
  size_t number_of(const c10::Storage& storage,
                   at::ScalarType dtype,
                   const Read& read) {
    const auto [found, is_new] = numbers_.emplace(
        std::pair(storage.unsafeGetStorageImpl(), dtype), storages_.size());
    if (is_new) {
      sources_.push_back(storage);
      storages_.push_back(read ? read : reader_of(storage));
    }
    return found->second;
  }

  static Read reader_of(const c10::Storage& storage) {
    const auto size = static_cast<int64_t>(storage.nbytes());
    const auto bytes =
        at::empty({0}, at::TensorOptions(storage.device()).dtype(at::kByte))
            .set_(storage, 0, {size}, {1});
    return [bytes] { return bytes.cpu(); };
  }

  void write_global(std::string_view module, std::string_view name) {
    op(Op::GLOBAL);
    bytes_.append(module).append("\n").append(name).append("\n");
  }

  void op(Op code) { bytes_ += static_cast<char>(code); }

  template <class T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  std::string bytes_;
  std::string place_;  // path of the current value, for errors
  std::vector<Read> storages_;
  std::vector<c10::Storage> sources_;  // keeps the keys of numbers_ valid
  std::map<std::pair<const c10::StorageImpl*, at::ScalarType>, size_t> numbers_;
};

}  // namespace

Pickled pickle(const IValue& value) {
  return Pickler().run(value);
}

void copy_storages(Pickled& pickled) {
  for (auto& read : pickled.storages) {
    auto bytes = read();
    // Nobody else has a tensor that was gathered, or copied from a GPU.
    if (bytes.use_count() > 1) {
      bytes = bytes.clone();
    }
    read = [bytes] { return bytes; };
  }
}

}  // namespace ddp::detail
