#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstddef>
#include <string_view>

namespace fake_gpu {

using c10::ScalarType;

/// Number type that holds every value of the supported types: 64-bit integers
/// and double.
using Number = long double;

/// Returns the type with a C++ name such as "float" or "c10::Half"; Undefined
/// if unknown.
ScalarType type_named(std::string_view name);

/// Returns the size in bytes; 0 for an unknown type.
size_t size_of(ScalarType type);

/// Returns false for complex types, which have a size but can only be copied.
bool is_number(ScalarType type);

Number load(const char* place, ScalarType type);
void store(char* place, ScalarType type, Number value);

/// Returns the value after a conversion to the type: rounded, or truncated.
Number rounded(Number value, ScalarType type);

}  // namespace fake_gpu
