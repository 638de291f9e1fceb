#include "test/fake_gpu/nccl/reduction.h"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "test/fake_gpu/log.h"

namespace fake_gpu {
namespace {

template <typename T>
using Sum = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

template <typename T>
Sum<T> combine(Sum<T> a, Sum<T> b, ncclRedOp_t reduction) {
  switch (reduction) {
    case ncclSum:
    case ncclAvg:
      return a + b;
    case ncclProd:
      return a * b;
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      fail("no stand-in for a reduction of the user's");
  }
}

template <typename T>
void reduce_as(char* to,
               const std::vector<const char*>& from,
               size_t count,
               ncclRedOp_t reduction) {
  const auto element = [&](size_t rank, size_t i) {
    return static_cast<Sum<T>>(reinterpret_cast<const T*>(from[rank])[i]);
  };
  for (size_t i = 0; i < count; ++i) {
    Sum<T> value = element(0, i);
    for (size_t rank = 1; rank < from.size(); ++rank) {
      value = combine<T>(value, element(rank, i), reduction);
    }
    if (reduction == ncclAvg) {
      value /= static_cast<Sum<T>>(from.size());
    }
    reinterpret_cast<T*>(to)[i] = static_cast<T>(value);
  }
}

}  // namespace

void reduce(char* to,
            const std::vector<const char*>& from,
            size_t count,
            ncclDataType_t type,
            ncclRedOp_t reduction) {
  switch (type) {
    case ncclInt8:
      return reduce_as<int8_t>(to, from, count, reduction);
    case ncclUint8:
      return reduce_as<uint8_t>(to, from, count, reduction);
    case ncclInt32:
      return reduce_as<int32_t>(to, from, count, reduction);
    case ncclUint32:
      return reduce_as<uint32_t>(to, from, count, reduction);
    case ncclInt64:
      return reduce_as<int64_t>(to, from, count, reduction);
    case ncclUint64:
      return reduce_as<uint64_t>(to, from, count, reduction);
    case ncclFloat16:
      return reduce_as<c10::Half>(to, from, count, reduction);
    case ncclBfloat16:
      return reduce_as<c10::BFloat16>(to, from, count, reduction);
    case ncclFloat32:
      return reduce_as<float>(to, from, count, reduction);
    case ncclFloat64:
      return reduce_as<double>(to, from, count, reduction);
    default:
      fail("no stand-in for a reduction of type " + std::to_string(type));
  }
}

}  // namespace fake_gpu
