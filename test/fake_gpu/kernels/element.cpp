#include "test/fake_gpu/kernels/element.h"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fake_gpu {
namespace {

template <typename T>
Number widened(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<Number>(value);
  } else {
    return static_cast<Number>(static_cast<float>(value));
  }
}

template <typename T>
T narrowed(Number value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

template <typename T>
struct Tag {
  using type = T;
};

/// Calls `function` with the C++ type. Returns false if the type is not a
/// number.
template <typename Function>
bool with_type(ScalarType type, Function function) {
  switch (type) {
    case ScalarType::Float:
      return function(Tag<float>()), true;
    case ScalarType::Double:
      return function(Tag<double>()), true;
    case ScalarType::Half:
      return function(Tag<c10::Half>()), true;
    case ScalarType::BFloat16:
      return function(Tag<c10::BFloat16>()), true;
    case ScalarType::Int:
      return function(Tag<int32_t>()), true;
    case ScalarType::Long:
      return function(Tag<int64_t>()), true;
    case ScalarType::Short:
      return function(Tag<int16_t>()), true;
    case ScalarType::Char:
      return function(Tag<int8_t>()), true;
    case ScalarType::Byte:
      return function(Tag<uint8_t>()), true;
    case ScalarType::Bool:
      return function(Tag<bool>()), true;
    default:
      return false;
  }
}

struct NamedType {
  std::string_view name;
  ScalarType type;
};

constexpr NamedType kTypes[] = {
    {"float", ScalarType::Float},
    {"double", ScalarType::Double},
    {"c10::Half", ScalarType::Half},
    {"c10::BFloat16", ScalarType::BFloat16},
    {"int", ScalarType::Int},
    {"long", ScalarType::Long},
    {"short", ScalarType::Short},
    {"signed char", ScalarType::Char},
    {"unsigned char", ScalarType::Byte},
    {"bool", ScalarType::Bool},
    {"c10::complex<float>", ScalarType::ComplexFloat},
    {"c10::complex<double>", ScalarType::ComplexDouble},
};

}  // namespace

ScalarType type_named(std::string_view name) {
  for (const NamedType& item : kTypes) {
    if (item.name == name) {
      return item.type;
    }
  }
  return ScalarType::Undefined;
}

size_t size_of(ScalarType type) {
  size_t size = 0;
  with_type(type,
            [&](auto tag) { size = sizeof(typename decltype(tag)::type); });
  if (type == ScalarType::ComplexFloat) {
    size = 2 * sizeof(float);
  } else if (type == ScalarType::ComplexDouble) {
    size = 2 * sizeof(double);
  }
  return size;
}

bool is_number(ScalarType type) {
  return with_type(type, [](auto) {});
}

Number load(const char* place, ScalarType type) {
  Number result = 0;
  with_type(type, [&](auto tag) {
    typename decltype(tag)::type value;
    std::memcpy(&value, place, sizeof value);
    result = widened(value);
  });
  return result;
}

void store(char* place, ScalarType type, Number value) {
  with_type(type, [&](auto tag) {
    const auto narrow = narrowed<typename decltype(tag)::type>(value);
    std::memcpy(place, &narrow, sizeof narrow);
  });
}

Number rounded(Number value, ScalarType type) {
  Number result = value;
  with_type(type, [&](auto tag) {
    result = widened(narrowed<typename decltype(tag)::type>(value));
  });
  return result;
}

}  // namespace fake_gpu
