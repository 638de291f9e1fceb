#pragma once

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp {

/// Calls `visit(tensor)` for every tensor in `value`: a tensor; a vector,
/// array, tuple, pair, map or optional of such; a struct that says what it
/// holds. What is none of these holds no tensor.
///
/// A struct says it by one function beside it, found by its argument:
/// @code
///   struct Output { torch::Tensor logits; torch::Tensor loss; };
///   inline auto tensor_fields(const Output& o) {
///     return std::tie(o.logits, o.loss);
///   }
/// @endcode
template <typename T, typename Visit>
void for_each_tensor(const T& value, const Visit& visit);

namespace detail {

template <typename T, typename = void>
struct HasTensorFields : std::false_type {};
template <typename T>
struct HasTensorFields<
    T,
    std::void_t<decltype(tensor_fields(std::declval<const T&>()))>>
    : std::true_type {};

/// Whether `for_each_tensor` may find one in a T.
template <typename T>
struct TensorWalk;
template <typename T>
constexpr bool may_hold_tensors = TensorWalk<T>::kMayHold;

template <typename T>
struct TensorWalk {
  static constexpr bool kMayHold =
      std::is_base_of_v<at::Tensor, T> || HasTensorFields<T>::value;
  template <typename Visit>
  static void walk(const T& value, const Visit& visit) {
    if constexpr (std::is_base_of_v<at::Tensor, T>) {
      visit(value);
    } else if constexpr (HasTensorFields<T>::value) {
      ::ddp::for_each_tensor(tensor_fields(value), visit);
    }
  }
};

template <typename Range>
struct RangeWalk {
  static constexpr bool kMayHold = may_hold_tensors<typename Range::value_type>;
  template <typename Visit>
  static void walk(const Range& range, const Visit& visit) {
    for (const auto& element : range) {
      ::ddp::for_each_tensor(element, visit);
    }
  }
};

template <typename T, typename A>
struct TensorWalk<std::vector<T, A>> : RangeWalk<std::vector<T, A>> {};
template <typename T, size_t N>
struct TensorWalk<std::array<T, N>> : RangeWalk<std::array<T, N>> {};
template <typename K, typename V, typename C, typename A>
struct TensorWalk<std::map<K, V, C, A>> : RangeWalk<std::map<K, V, C, A>> {};
template <typename K, typename V, typename H, typename E, typename A>
struct TensorWalk<std::unordered_map<K, V, H, E, A>>
    : RangeWalk<std::unordered_map<K, V, H, E, A>> {};

template <typename T>
struct TensorWalk<std::optional<T>> {
  static constexpr bool kMayHold = may_hold_tensors<T>;
  template <typename Visit>
  static void walk(const std::optional<T>& value, const Visit& visit) {
    if (value) {
      ::ddp::for_each_tensor(*value, visit);
    }
  }
};

template <typename Tuple, typename... T>
struct TupleWalk {
  static constexpr bool kMayHold = (may_hold_tensors<T> || ...);
  template <typename Visit>
  static void walk(const Tuple& tuple, const Visit& visit) {
    std::apply(
        [&](const auto&... elements) {
          (::ddp::for_each_tensor(elements, visit), ...);
        },
        tuple);
  }
};

template <typename... T>
struct TensorWalk<std::tuple<T...>> : TupleWalk<std::tuple<T...>, T...> {};
template <typename A, typename B>
struct TensorWalk<std::pair<A, B>> : TupleWalk<std::pair<A, B>, A, B> {};

}  // namespace detail

template <typename T, typename Visit>
void for_each_tensor(const T& value, const Visit& visit) {
  detail::TensorWalk<T>::walk(value, visit);
}

}  // namespace ddp
