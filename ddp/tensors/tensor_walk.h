#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/utils/rnn.h>
#include <torch/ordered_dict.h>

namespace ddp {

/// Calls `visit(tensor)` for every tensor in `value`, undefined ones included.
/// `value` may be a tensor; a vector, array, tuple, pair, map or optional of
/// supported types; a PackedSequence (only its data); or a struct that lists
/// its tensors. Values of other types contain no visible tensors. Other
/// containers of tensors (std::deque, std::set, std::variant, c10::Dict) do not
/// compile. An unordered_map is visited in the order of its keys, which need a
/// `<`.
///
/// `visit` takes a `const at::Tensor&`. A generic parameter (`const auto&`)
/// would also be given objects that are no tensors.
///
/// A struct lists its tensors in a function `tensor_fields` in the namespace of
/// the struct. This also works for structs of other libraries:
/// @code
///   struct Output { torch::Tensor logits; torch::Tensor loss; };
///   inline auto tensor_fields(const Output& o) {
///     return std::tie(o.logits, o.loss);
///   }
/// @endcode
/// The function returns references, as `std::tie` does. For copies,
/// `dp::scatter`, `dp::gather` and `dp::DataParallel` throw c10::Error if they
/// have to replace a tensor (by a chunk, or one of another device). For a
/// struct without tensors the function returns `std::tie()`.
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

template <typename T>
struct TensorWalk;
/// True if `for_each_tensor` may find a tensor in a T.
template <typename T>
constexpr bool may_hold_tensors = TensorWalk<T>::kMayHold;
/// True if a T contains no tensor that `for_each_tensor` misses. False if the
/// type is unknown.
template <typename T>
constexpr bool shows_all_tensors =
    TensorWalk<std::remove_cv_t<std::remove_reference_t<T>>>::kShowsAll;

/// True for a range whose elements contain no tensors, such as a std::string.
template <typename T, typename = void>
struct IsPlainRange : std::false_type {};
template <typename T>
struct IsPlainRange<T,
                    std::void_t<typename T::value_type,
                                decltype(std::declval<const T&>().begin())>>
    : std::bool_constant<!may_hold_tensors<typename T::value_type> &&
                         shows_all_tensors<typename T::value_type>> {};

template <typename T>
struct TensorWalk {
  static constexpr bool kMayHold =
      std::is_base_of_v<at::Tensor, T> || HasTensorFields<T>::value;

  static constexpr bool shows_all() {
    if constexpr (HasTensorFields<T>::value) {
      return shows_all_tensors<decltype(tensor_fields(
          std::declval<const T&>()))>;
    } else if constexpr (std::is_pointer_v<T>) {
      return !may_hold_tensors<std::remove_cv_t<std::remove_pointer_t<T>>>;
    } else {
      // A tensor has a non-trivial destructor, so a trivial type contains none.
      return kMayHold || std::is_trivially_copyable_v<T> ||
             IsPlainRange<T>::value;
    }
  }
  static constexpr bool kShowsAll = shows_all();

  template <typename Visit>
  static void walk(const T& value, const Visit& visit) {
    if constexpr (std::is_base_of_v<at::Tensor, T>) {
      visit(value);
    } else if constexpr (HasTensorFields<T>::value) {
      ::ddp::for_each_tensor(tensor_fields(value), visit);
    }
  }
};

/// Part of a value's structure that may differ between values of one type: "2
/// elements", "a value". A visitor that accepts a Structure receives it before
/// the tensors that it describes.
struct Structure {
  std::string text;
};

template <typename Visit, typename Describe>
void visit_structure(const Visit& visit, const Describe& describe) {
  if constexpr (std::is_invocable_v<const Visit&, const Structure&>) {
    visit(Structure{describe()});
  }
}

template <typename Range>
struct RangeWalk {
  static constexpr bool kMayHold = may_hold_tensors<typename Range::value_type>;
  static constexpr bool kShowsAll =
      shows_all_tensors<typename Range::value_type>;
  template <typename Visit>
  static void walk(const Range& range, const Visit& visit) {
    visit_structure(visit,
                    [&] { return std::to_string(range.size()) + " elements"; });
    for (const auto& element : range) {
      ::ddp::for_each_tensor(element, visit);
    }
  }
};

template <typename T, typename A>
struct TensorWalk<std::vector<T, A>> : RangeWalk<std::vector<T, A>> {};
template <typename T, size_t N>
struct TensorWalk<std::array<T, N>> : RangeWalk<std::array<T, N>> {};

template <typename Key>
constexpr bool is_string_key =
    std::is_convertible_v<const Key&, std::string_view>;
/// True if different keys have different texts of `show_key`.
template <typename Key>
constexpr bool has_key_text =
    is_string_key<Key> || std::is_integral_v<Key> || std::is_enum_v<Key>;

template <typename Key>
std::string show_key(const Key& key) {
  static_assert(has_key_text<Key>,
                "results with maps are gathered by their keys, which are "
                "integers, enums or strings; return a std::vector of pairs");
  if constexpr (is_string_key<Key>) {
    return "key \"" + std::string(std::string_view(key)) + '"';
  } else if constexpr (std::is_enum_v<Key>) {
    return show_key(static_cast<std::underlying_type_t<Key>>(key));
  } else {
    return "key " + std::to_string(key);
  }
}

template <typename Map>
struct MapWalk {
  static constexpr bool kMayHold = may_hold_tensors<typename Map::mapped_type>;
  static constexpr bool kShowsAll =
      shows_all_tensors<typename Map::mapped_type>;
  template <typename Visit>
  static void walk(const Map& map, const Visit& visit) {
    visit_structure(visit,
                    [&] { return std::to_string(map.size()) + " keys"; });
    for (const auto& [key, value] : map) {
      visit_item(key, value, visit);
    }
  }

 protected:
  template <typename Key, typename Value, typename Visit>
  static void visit_item(const Key& key,
                         const Value& value,
                         const Visit& visit) {
    if constexpr (std::is_invocable_v<const Visit&, const Structure&>) {
      visit(Structure{show_key(key)});
    }
    ::ddp::for_each_tensor(value, visit);
  }
};

template <typename K, typename V, typename C, typename A>
struct TensorWalk<std::map<K, V, C, A>> : MapWalk<std::map<K, V, C, A>> {};

/// Visits the items in the order of their keys, because equal unordered maps
/// may iterate in different orders.
template <typename K, typename V, typename H, typename E, typename A>
struct TensorWalk<std::unordered_map<K, V, H, E, A>>
    : MapWalk<std::unordered_map<K, V, H, E, A>> {
  using Map = std::unordered_map<K, V, H, E, A>;
  template <typename Visit>
  static void walk(const Map& map, const Visit& visit) {
    std::vector<const typename Map::value_type*> items;
    for (const auto& item : map) {
      items.push_back(&item);
    }
    std::sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
      return a->first < b->first;
    });
    visit_structure(visit,
                    [&] { return std::to_string(map.size()) + " keys"; });
    for (const auto* item : items) {
      MapWalk<Map>::visit_item(item->first, item->second, visit);
    }
  }
};

template <typename T>
struct TensorWalk<std::optional<T>> {
  static constexpr bool kMayHold = may_hold_tensors<T>;
  static constexpr bool kShowsAll = shows_all_tensors<T>;
  template <typename Visit>
  static void walk(const std::optional<T>& value, const Visit& visit) {
    visit_structure(visit, [&] { return value ? "a value" : "no value"; });
    if (value) {
      ::ddp::for_each_tensor(*value, visit);
    }
  }
};

template <typename Tuple, typename... T>
struct TupleWalk {
  static constexpr bool kMayHold = (may_hold_tensors<T> || ...);
  static constexpr bool kShowsAll = (shows_all_tensors<T> && ...);
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

/// Visits only the data, because the other tensors are integers, which need no
/// dtype or gradient. A visitor that accepts a PackedSequence receives the
/// whole object.
template <>
struct TensorWalk<torch::nn::utils::rnn::PackedSequence> {
  static constexpr bool kMayHold = true;
  static constexpr bool kShowsAll = true;
  template <typename Visit>
  static void walk(const torch::nn::utils::rnn::PackedSequence& value,
                   const Visit& visit) {
    if constexpr (std::is_invocable_v<
                      const Visit&,
                      const torch::nn::utils::rnn::PackedSequence&>) {
      visit(value);
    } else {
      ::ddp::for_each_tensor(value.data(), visit);
    }
  }
};

/// True if T is a container of tensors that the walk does not enter. False for
/// structs, whose contents are unknown.
template <typename T, typename = void>
struct HidesTensors : std::false_type {};
template <typename T>
struct HidesTensors<T,
                    std::void_t<typename T::value_type,
                                decltype(std::declval<const T&>().begin())>>
    : std::bool_constant<may_hold_tensors<typename T::value_type> &&
                         !may_hold_tensors<T>> {};
template <typename... T>
struct HidesTensors<std::variant<T...>>
    : std::bool_constant<(may_hold_tensors<T> || ...)> {};
template <typename K, typename V>
struct HidesTensors<torch::OrderedDict<K, V>>
    : std::bool_constant<may_hold_tensors<V>> {};
template <typename K, typename V>
struct HidesTensors<c10::Dict<K, V>> : std::bool_constant<may_hold_tensors<V>> {
};

}  // namespace detail

template <typename T, typename Visit>
void for_each_tensor(const T& value, const Visit& visit) {
  static_assert(!detail::HidesTensors<T>::value,
                "tensors in this container are not seen: give a std::vector, "
                "array, tuple, pair, map, unordered_map or optional, or a "
                "struct with tensor_fields");
  detail::TensorWalk<T>::walk(value, visit);
}

}  // namespace ddp
