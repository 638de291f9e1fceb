#pragma once

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <torch/ordered_dict.h>

#include "dp/detail/data_parallel/result_walk.h"

namespace dp::detail {

/// Whether a type holds tensors that the walks do not see, as std::deque,
/// std::set and at::ArrayRef do: they would go whole to every replica. Nothing
/// is known of a struct.
template <typename T, typename = void>
struct HidesTensors : std::false_type {};

template <typename T>
constexpr bool kHidesTensors = HidesTensors<std::decay_t<T>>::value;

/// A range.
template <typename T>
struct HidesTensors<T,
                    std::void_t<typename T::value_type,
                                decltype(std::declval<const T&>().begin()),
                                decltype(std::declval<const T&>().end())>> {
  using Element = std::decay_t<typename T::value_type>;
  static constexpr bool value =
      kHidesTensors<Element> ||
      (ResultWalk<Element>::kHoldsTensors && !ResultWalk<T>::kHoldsTensors);
};

template <typename... T>
struct HidesTensors<std::tuple<T...>>
    : std::bool_constant<(kHidesTensors<T> || ...)> {};
template <typename A, typename B>
struct HidesTensors<std::pair<A, B>>
    : std::bool_constant<kHidesTensors<A> || kHidesTensors<B>> {};
template <typename T>
struct HidesTensors<std::optional<T>> : HidesTensors<T> {};
template <typename... T>
struct HidesTensors<std::variant<T...>>
    : std::bool_constant<((kHidesTensors<T> || ResultWalk<T>::kHoldsTensors) ||
                          ...)> {};
template <typename K, typename V>
struct HidesTensors<torch::OrderedDict<K, V>>
    : std::bool_constant<kHidesTensors<V> || ResultWalk<V>::kHoldsTensors> {};

}  // namespace dp::detail
