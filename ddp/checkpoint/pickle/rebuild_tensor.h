#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace ddp::detail {

/// Returns the result of Python's torch._utils._rebuild_tensor_v2 for its
/// arguments: (storage, offset, sizes, strides, requires_grad, hooks[,
/// metadata]). The storage is a `python_object` with the storage class as its
/// name and the bytes as its content; the metadata tell whether the conjugate
/// and the negative bit are set.
///
/// @throws c10::Error if the arguments are invalid or exceed the storage.
at::Tensor rebuild_tensor_v2(c10::ArrayRef<c10::IValue> arguments);

/// Returns the result of _rebuild_tensor_v3, which Python uses for its newer
/// dtypes: (storage, offset, sizes, strides, requires_grad, hooks, dtype[,
/// metadata]).
/// @throws c10::Error as above, or if the dtype is unknown.
at::Tensor rebuild_tensor_v3(c10::ArrayRef<c10::IValue> arguments);

}  // namespace ddp::detail
