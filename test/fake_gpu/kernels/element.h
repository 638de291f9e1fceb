#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstddef>
#include <string_view>

namespace fake_gpu {

using c10::ScalarType;

/// Holds every value of the types that can be computed with: 64 bits of
/// integer, and double.
using Number = long double;

/// By its name in C++, such as "float" or "c10::Half"; Undefined if unknown.
ScalarType type_named(std::string_view name);

/// In bytes; 0 for a type that is not known here.
size_t size_of(ScalarType type);

/// Complex numbers have a size, but can only be copied.
bool is_number(ScalarType type);

Number load(const char* place, ScalarType type);
void store(char* place, ScalarType type, Number value);

/// As a value of that type would have it: rounded, or cut off.
Number rounded(Number value, ScalarType type);

}  // namespace fake_gpu
