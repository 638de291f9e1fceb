#pragma once

#include <string>
#include <string_view>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Converts a numpy scalar to Python's int, float, complex or bool with the
/// same value. Returns None if none of these types can hold it.
///
/// @param dtype  byte order and type code, "<i8".
/// @param bytes  memory of the scalar.
/// @throws c10::Error if the number of bytes does not match the dtype.
c10::IValue numpy_scalar(const std::string& dtype, std::string_view bytes);

}  // namespace ddp::detail
