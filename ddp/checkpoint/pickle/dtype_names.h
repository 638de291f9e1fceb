#pragma once

#include <optional>
#include <string>

#include <c10/core/ScalarType.h>

namespace ddp::detail {

/// Returns the dtype of a Python storage class ("torch.FloatStorage",
/// "torch.storage.UntypedStorage"); std::nullopt for an unknown class.
std::optional<at::ScalarType> dtype_of_storage(const std::string& dotted);

/// Returns the dtype of a Python name ("torch.float8_e4m3fn"); std::nullopt for
/// an unknown name.
std::optional<at::ScalarType> dtype_of_name(const std::string& dotted);

/// Returns the name of a dtype's storage class in Python's module torch;
/// std::nullopt for the newer dtypes, whose tensors are in an UntypedStorage.
std::optional<std::string> storage_class(at::ScalarType dtype);

}  // namespace ddp::detail
