#include "ddp/shard/operator_watch.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

namespace ddp::detail {
namespace {

using Flag = bool c10::StorageImpl::*;

Flag throws_flag();

/// An explicit instantiation may name a private member.
template <Flag flag>
struct PrivateFlag {
  friend Flag throws_flag() { return flag; }
};
template struct PrivateFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

/// Above autograd and autocast; LibTorch itself uses them in its tests and in
/// its tools for Python alone.
constexpr std::array kKeys{c10::DispatchKey::TESTING_ONLY_GenericWrapper,
                           c10::DispatchKey::DeferredInit};

using Kept = c10::SmallVector<at::Tensor, 4>;

void visit_argument(const at::Tensor& tensor,
                    const c10::FunctionSchema& op,
                    size_t index,
                    Kept& kept) {
  if (const auto* storage = watched_storage_of(tensor)) {
    const auto* alias = op.arguments()[index].alias_info();
    auto memory =
        storage->before_operator(op, alias != nullptr && alias->isWrite());
    if (memory.defined()) {
      kept.push_back(std::move(memory));
    }
  }
}

/// `record_stream` for the memory of a watched tensor. Returns false if the
/// tensor is not watched.
bool record_memory(const at::Tensor& tensor, c10::Stream stream) {
  auto* storage = watched_storage_of(tensor);
  if (storage == nullptr) {
    return false;
  }
  if (const auto memory = storage->memory(); memory.defined()) {
    memory.record_stream(stream);
  }
  return true;
}

template <c10::DispatchKey key>
void on_operator(const c10::OperatorHandle& op,
                 c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  if (schema.name() == "aten::record_stream" &&
      record_memory(arguments[0].toTensor(), arguments[1].toStream())) {
    torch::jit::drop(*stack, arguments.size());
    return;
  }
  Kept kept;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = arguments[i];
    if (value.isTensor()) {
      visit_argument(value.toTensor(), schema, i, kept);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const auto& element : value.toListRef()) {
        if (element.isTensor()) {
          visit_argument(element.toTensor(), schema, i, kept);
        }
      }
    }
  }
  std::optional<c10::impl::ExcludeDispatchKeyGuard> within;
  if (schema.name().compare(0, 6, "aten::") == 0 && reads_values(schema)) {
    within.emplace(key);  // covers the operators that it calls
  }
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
}

template <c10::DispatchKey key>
std::unique_ptr<torch::Library> library_for() {
  auto library = std::make_unique<torch::Library>(
      torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(
      torch::CppFunction::makeFromBoxedFunction<&on_operator<key>>());
  return library;
}

/// Takes a key for the rest of the process. Returns false if it is not free.
template <c10::DispatchKey key>
bool take(std::string& error) {
  try {
    static const auto* library = library_for<key>().release();
    return library != nullptr;
  } catch (const c10::Error& thrown) {
    error += c10::str(" ", key, " (", thrown.what_without_backtrace(), ")");
    return false;
  }
}

c10::DispatchKey take_key() {
  std::string error;
  if (take<kKeys[0]>(error)) {
    return kKeys[0];
  }
  if (take<kKeys[1]>(error)) {
    return kKeys[1];
  }
  TORCH_CHECK(false,
              "Expected one of LibTorch's dispatch keys for operators on "
              "sharded parameters to be free, but other libraries of this "
              "process have taken both:",
              error,
              "; train without them, or with DistributedDataParallel");
}

}  // namespace

WatchedStorage::WatchedStorage(int64_t bytes,
                               at::Device device,
                               std::string error)
    : StorageImpl(use_byte_size_t(),
                  bytes,
                  at::DataPtr(nullptr, device),
                  c10::GetAllocator(device.type()),
                  /*resizable=*/false),
      error_(std::move(error)) {
  release_data_and_set_meta_custom_data_ptr_error_msg_(error_);
}

void WatchedStorage::set_memory(const at::Tensor& memory) {
  // LibTorch itself cannot end the state in which access throws.
  this->*throws_flag() = !memory.defined();
  set_data_ptr_noswap(
      memory.defined()
          ? at::DataPtr(
                memory.mutable_data_ptr(),
                new at::Tensor(memory),
                [](void* held) { delete static_cast<at::Tensor*>(held); },
                memory.device())
          : at::DataPtr(nullptr, device()));
}

at::Tensor WatchedStorage::memory() {
  const auto* held =
      static_cast<at::Tensor*>(_mutable_data_ptr_no_checks().get_context());
  return held == nullptr ? at::Tensor() : *held;
}

bool reads_values(const c10::FunctionSchema& op) {
  const auto is_view = [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  };
  const std::string_view name = op.name();
  constexpr std::string_view kLike = "_like";
  const bool is_like = name.size() > kLike.size() &&
                       name.substr(name.size() - kLike.size()) == kLike;
  return !is_like && name.substr(0, 10) != "aten::new_" &&
         name != "aten::_has_compatible_shallow_copy_type" &&
         name != "aten::is_same_size" &&
         std::none_of(op.returns().begin(), op.returns().end(), is_view);
}

c10::DispatchKey watch_operators() {
  static const auto key = take_key();
  return key;
}

WatchedStorage* watched_storage_of(const at::Tensor& tensor) {
  if (!tensor.defined() ||
      !tensor.key_set().has_any(c10::DispatchKeySet({kKeys[0], kKeys[1]}))) {
    return nullptr;
  }
  return tensor.has_storage() ? dynamic_cast<WatchedStorage*>(
                                    tensor.storage().unsafeGetStorageImpl())
                              : nullptr;
}

at::Tensor watched_tensor(const at::Tensor& like,
                          const c10::intrusive_ptr<c10::StorageImpl>& storage,
                          at::IntArrayRef sizes,
                          at::IntArrayRef strides,
                          int64_t offset) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      like.key_set() | c10::DispatchKeySet(watch_operators()),
      like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return made;
}

}  // namespace ddp::detail
