#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// The dtype of a Python storage class ("torch.FloatStorage",
/// "torch.storage.UntypedStorage"); none for an unknown one.
std::optional<at::ScalarType> dtype_of_storage(const std::string& dotted);

/// `bytes` as a tensor of another dtype and one dimension, over the same
/// memory.
at::Tensor reinterpret(const at::Tensor& bytes, at::ScalarType dtype);

/// What Python's torch._utils._rebuild_tensor_v2 and _v3 make of their
/// arguments: (storage, offset, sizes, strides, requires_grad, hooks[, dtype]).
/// The storage is a tensor of one dimension.
///
/// @param dtype  the seventh argument of _v3 ("torch.float8_e4m3fn"); empty for
/// _v2.
/// @throws c10::Error when the arguments are none, or reach beyond the storage.
at::Tensor rebuild_tensor(const std::vector<c10::IValue>& arguments,
                          const std::string& dtype = "");

}  // namespace ddp::detail
