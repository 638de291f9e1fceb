#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// What Python's torch._utils._rebuild_tensor_v2 makes of its arguments:
/// (storage, offset, sizes, strides, requires_grad, hooks[, metadata]). The
/// storage is a `python_object` of its class that holds its bytes; the metadata
/// say which of the conjugate and the negative bit are set.
///
/// @throws c10::Error when the arguments are none, or reach beyond the storage.
at::Tensor rebuild_tensor_v2(const std::vector<c10::IValue>& arguments);

/// The same for _rebuild_tensor_v3, by which Python saves its newer dtypes:
/// (storage, offset, sizes, strides, requires_grad, hooks, dtype[, metadata]).
at::Tensor rebuild_tensor_v3(const std::vector<c10::IValue>& arguments);

}  // namespace ddp::detail
