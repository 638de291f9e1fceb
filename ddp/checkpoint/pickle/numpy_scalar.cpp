#include "ddp/checkpoint/pickle/numpy_scalar.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>

#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include "ddp/checkpoint/pickle/pickle_stack.h"

namespace ddp::detail {
namespace {

template <class T>
c10::IValue convert(std::string_view bytes) {
  TORCH_CHECK(bytes.size() == sizeof(T), kDamagedPickle);
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return {};
    }
  }
  if constexpr (std::is_integral_v<T>) {
    return static_cast<int64_t>(value);
  } else if constexpr (c10::is_complex<T>::value) {
    return c10::complex<double>(value);
  } else {
    return static_cast<double>(value);
  }
}

c10::IValue convert_bool(std::string_view bytes) {
  return convert<uint8_t>(bytes).toInt() != 0;
}

}  // namespace

c10::IValue numpy_scalar(const std::string& dtype, std::string_view bytes) {
  static const std::unordered_map<std::string,
                                  c10::IValue (*)(std::string_view)>
      conversions{{"|b1", convert_bool},
                  {"|i1", convert<int8_t>},
                  {"|u1", convert<uint8_t>},
                  {"<i2", convert<int16_t>},
                  {"<u2", convert<uint16_t>},
                  {"<i4", convert<int32_t>},
                  {"<u4", convert<uint32_t>},
                  {"<i8", convert<int64_t>},
                  {"<u8", convert<uint64_t>},
                  {"<f2", convert<c10::Half>},
                  {"<f4", convert<float>},
                  {"<f8", convert<double>},
                  {"<c8", convert<c10::complex<float>>},
                  {"<c16", convert<c10::complex<double>>}};
  const auto found = conversions.find(dtype);
  return found == conversions.end() ? c10::IValue() : found->second(bytes);
}

}  // namespace ddp::detail
