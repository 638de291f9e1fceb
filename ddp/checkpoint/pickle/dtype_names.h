#pragma once

#include <optional>
#include <string>

#include <c10/core/ScalarType.h>

namespace ddp::detail {

/// The dtype of a Python storage class ("torch.FloatStorage",
/// "torch.storage.UntypedStorage"); none for an unknown one.
std::optional<at::ScalarType> dtype_of_storage(const std::string& dotted);

/// The dtype of a Python name ("torch.float8_e4m3fn"); none for an unknown one.
std::optional<at::ScalarType> dtype_of_name(const std::string& dotted);

/// The name of the storage class in the module torch that Python has for a
/// dtype; none for the newer dtypes, whose tensors lie in an UntypedStorage.
std::optional<std::string> storage_class(at::ScalarType dtype);

}  // namespace ddp::detail
