#include "ddp/checkpoint/pickle/deferred_tensor.h"

#include <utility>

#include <c10/util/Exception.h>

namespace ddp::detail {

DeferredTensor::DeferredTensor(at::Tensor like,
                               std::function<at::Tensor()> read,
                               TensorRun part)
    : like_(std::move(like)), read_(std::move(read)), part_(std::move(part)) {}

at::Tensor DeferredTensor::read() {
  const auto read = std::exchange(read_, nullptr);
  TORCH_INTERNAL_ASSERT(read);
  return read();
}

c10::intrusive_ptr<DeferredTensor> as_deferred(const c10::IValue& value) {
  if (!value.isCapsule()) {
    return nullptr;
  }
  auto capsule = value.toCapsule();
  auto* found = dynamic_cast<DeferredTensor*>(capsule.get());
  return found == nullptr
             ? nullptr
             : c10::intrusive_ptr<DeferredTensor>::reclaim_copy(found);
}

void read_rest(const c10::IValue& state) {
  if (state.isGenericDict()) {
    for (const auto& item : state.toGenericDict()) {
      read_rest(item.value());
    }
  } else if (state.isList() || state.isTuple()) {
    for (const auto& item : state.isList()
                                ? state.toListRef()
                                : state.toTupleRef().elements().asArrayRef()) {
      read_rest(item);
    }
  } else if (const auto deferred = as_deferred(state)) {
    if (!deferred->is_read()) {
      deferred->read();
    }
  }
}

}  // namespace ddp::detail
