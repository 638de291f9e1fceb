#pragma once

#include <string>
#include <string_view>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// A scalar of numpy as Python's int, float, complex or bool of the same value;
/// None for a kind that none of them can hold.
///
/// @param dtype  byte order and code, "<i8".
/// @param bytes  its memory.
/// @throws c10::Error when there are too many or too few bytes.
c10::IValue numpy_scalar(const std::string& dtype, std::string_view bytes);

}  // namespace ddp::detail
