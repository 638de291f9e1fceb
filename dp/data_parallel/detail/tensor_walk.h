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
#include <c10/util/Exception.h>
#include <torch/nn/utils/rnn.h>
#include <torch/ordered_dict.h>

namespace dp::detail {

/// Calls `visit(tensor)` for every tensor in `value`, undefined ones included.
/// `value` may be a tensor; a vector, array, tuple, pair, map or optional of
/// supported types; or a struct with `tensor_fields` (see `DataParallel`).
/// Values of other types contain no visible tensors. Other containers of
/// tensors (std::deque, std::set, std::variant, c10::Dict) do not compile. An
/// unordered_map is visited in the order of its keys, which need a `<`.
///
/// A visitor that also accepts a `Structure` gets the sizes of containers and
/// the keys of maps, each before the tensors that it describes. The parameters
/// of a visitor must not be generic.
/// @throws c10::Error for a PackedSequence.
template <typename T, typename Visit>
void for_each_tensor(const T& value, const Visit& visit);

/// Property that may differ between values of one type: "2 elements".
struct Structure {
  std::string text;
};

template <typename Visit, typename Describe>
void visit_structure(const Visit& visit, const Describe& describe) {
  if constexpr (std::is_invocable_v<const Visit&, const Structure&>) {
    visit(Structure{describe()});
  }
}

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

/// True for a range of elements without tensors, such as a std::string.
template <typename T, typename = void>
struct IsPlainRange : std::false_type {};
template <typename T>
struct IsPlainRange<T,
                    std::void_t<typename T::value_type,
                                decltype(std::declval<const T&>().begin())>>
    : std::bool_constant<!may_hold_tensors<typename T::value_type> &&
                         shows_all_tensors<typename T::value_type>> {};

/// A tensor, a struct or a value of another type.
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
      for_each_tensor(tensor_fields(value), visit);
    }
  }
};

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
      for_each_tensor(element, visit);
    }
  }
};

template <typename T, typename A>
struct TensorWalk<std::vector<T, A>> : RangeWalk<std::vector<T, A>> {};
template <typename T, size_t N>
struct TensorWalk<std::array<T, N>> : RangeWalk<std::array<T, N>> {};

/// True if different keys have different texts of `show_key`.
template <typename Key>
constexpr bool has_key_text =
    std::is_convertible_v<const Key&, std::string_view> ||
    std::is_integral_v<Key> || std::is_enum_v<Key>;

template <typename Key>
std::string show_key(const Key& key) {
  static_assert(has_key_text<Key>,
                "results with maps are gathered by their keys, which are "
                "integers, enums or strings; return a std::vector of pairs");
  if constexpr (std::is_convertible_v<const Key&, std::string_view>) {
    return "key \"" + std::string(std::string_view(key)) + '"';
  } else if constexpr (std::is_enum_v<Key>) {
    return show_key(static_cast<std::underlying_type_t<Key>>(key));
  } else {
    return "key " + std::to_string(key);
  }
}

/// Equal unordered maps may iterate in different orders, so `kSorts` them.
template <typename Map, bool kSorts>
struct MapWalk {
  static constexpr bool kMayHold = may_hold_tensors<typename Map::mapped_type>;
  static constexpr bool kShowsAll =
      shows_all_tensors<typename Map::mapped_type>;
  template <typename Visit>
  static void walk(const Map& map, const Visit& visit) {
    visit_structure(visit,
                    [&] { return std::to_string(map.size()) + " keys"; });
    std::vector<const typename Map::value_type*> items;
    for (const auto& item : map) {
      items.push_back(&item);
    }
    if constexpr (kSorts) {
      std::sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return a->first < b->first;
      });
    }
    for (const auto* item : items) {
      visit_structure(visit, [&] { return show_key(item->first); });
      for_each_tensor(item->second, visit);
    }
  }
};

template <typename K, typename V, typename C, typename A>
struct TensorWalk<std::map<K, V, C, A>>
    : MapWalk<std::map<K, V, C, A>, /*kSorts=*/false> {};
template <typename K, typename V, typename H, typename E, typename A>
struct TensorWalk<std::unordered_map<K, V, H, E, A>>
    : MapWalk<std::unordered_map<K, V, H, E, A>, /*kSorts=*/true> {};

template <typename T>
struct TensorWalk<std::optional<T>> {
  static constexpr bool kMayHold = may_hold_tensors<T>;
  static constexpr bool kShowsAll = shows_all_tensors<T>;
  template <typename Visit>
  static void walk(const std::optional<T>& value, const Visit& visit) {
    visit_structure(visit, [&] { return value ? "a value" : "no value"; });
    if (value) {
      for_each_tensor(*value, visit);
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
          (for_each_tensor(elements, visit), ...);
        },
        tuple);
  }
};

template <typename... T>
struct TensorWalk<std::tuple<T...>> : TupleWalk<std::tuple<T...>, T...> {};
template <typename A, typename B>
struct TensorWalk<std::pair<A, B>> : TupleWalk<std::pair<A, B>, A, B> {};

/// Refused: the rows of its data are time steps of all sequences and cannot be
/// split or concatenated.
template <>
struct TensorWalk<torch::nn::utils::rnn::PackedSequence> {
  static constexpr bool kMayHold = true;
  static constexpr bool kShowsAll = true;
  template <typename Visit>
  static void walk(const torch::nn::utils::rnn::PackedSequence& /*value*/,
                   const Visit& /*visit*/) {
    TORCH_CHECK(false,
                "Expected tensors that can be split into rows and put together "
                "again, but got a PackedSequence; give and return the padded "
                "sequences and their lengths, and pack them in forward");
  }
};

/// True if T is a container of tensors that the walk does not enter. False for
/// structs, because their contents are unknown.
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

template <typename T, typename Visit>
void for_each_tensor(const T& value, const Visit& visit) {
  static_assert(!HidesTensors<T>::value,
                "tensors in this container are not seen: give a std::vector, "
                "array, tuple, pair, map, unordered_map or optional, or a "
                "struct with tensor_fields");
  TensorWalk<T>::walk(value, visit);
}

}  // namespace dp::detail
