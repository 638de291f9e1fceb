#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/tensor_walk.h"

namespace dp::detail {

/// Where in the result we are: "[1][\"loss\"]"; "" for the result itself.
using Path = std::string;

/// One tensor of the results of all parts.
struct ResultTensor {
  Path path;
  std::vector<at::Tensor*> of_parts;
};
using Found = std::vector<ResultTensor>;

/// The results of all parts of a batch, at least one.
template <typename T>
using Results = std::vector<T*>;

/// Walks through the results of all parts at once and collects their tensors.
/// Specialised as ddp::detail::TensorWalk is, so that both find the same.
template <typename T>
struct ResultWalk;

template <typename T>
void walk_results(const Results<T>& parts, const Path& path, Found& found) {
  if constexpr (ResultWalk<T>::kHoldsTensors) {
    ResultWalk<T>::walk(parts, path, found);
  }
}

/// The tensors in the results, as `ddp::for_each_tensor` finds them.
/// @throws c10::Error when the results are not alike: when a container has
///   other elements or keys in one part than in the first.
template <typename T>
Found tensors_in(const Results<T>& parts) {
  Found found;
  walk_results(parts, Path(), found);
  return found;
}

/// Says in what `first` and `other`, the first's and a part's, are not alike.
/// @throws c10::Error always.
[[noreturn]] void refuse(const Path& path,
                         const char* what,
                         const std::string& first,
                         const std::string& other,
                         size_t part);

/// Refuses a part with another property than the first's.
template <typename T, typename Property, typename Show>
void expect_alike(const Results<T>& parts,
                  const Path& path,
                  const char* what,
                  const Property& property,
                  const Show& show) {
  const auto first = property(*parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    if (const auto other = property(*parts[i]); other != first) {
      refuse(path, what, show(first), show(other), i);
    }
  }
}

/// Whether the parts have a tensor there.
/// @throws c10::Error when only some of them have.
bool is_defined(const ResultTensor& result);

/// What `access` points to in each part.
template <typename T, typename Access>
auto results_at(const Results<T>& parts, const Access& access) {
  Results<std::remove_pointer_t<decltype(access(*parts[0]))>> inner;
  for (T* part : parts) {
    inner.push_back(access(*part));
  }
  return inner;
}

template <typename T>
struct IsReferenceTuple : std::false_type {};
template <typename... T>
struct IsReferenceTuple<std::tuple<T...>>
    : std::bool_constant<(std::is_lvalue_reference_v<T> && ...)> {};

/// A tensor, a struct with `tensor_fields`, or what holds no tensor.
template <typename T>
struct ResultWalk {
  static constexpr bool kIsTensor = std::is_base_of_v<at::Tensor, T>;
  static constexpr bool kHoldsTensors =
      kIsTensor || ddp::detail::HasTensorFields<T>::value;

  static void walk(const Results<T>& parts, const Path& path, Found& found) {
    if constexpr (kIsTensor) {
      found.push_back({path, {parts.begin(), parts.end()}});
    } else {
      using Fields = decltype(tensor_fields(std::declval<const T&>()));
      static_assert(IsReferenceTuple<Fields>::value,
                    "tensor_fields must return std::tie(...)");
      walk_fields(parts,
                  path,
                  found,
                  std::make_index_sequence<std::tuple_size_v<Fields>>());
    }
  }

 private:
  template <size_t I>
  static auto* field(T& part) {
    const auto& value = std::get<I>(tensor_fields(std::as_const(part)));
    // The results are ours and not const.
    return const_cast<std::decay_t<decltype(value)>*>(&value);
  }

  template <size_t... I>
  static void walk_fields(const Results<T>& parts,
                          const Path& path,
                          Found& found,
                          std::index_sequence<I...>) {
    (walk_results(results_at(parts, [](T& part) { return field<I>(part); }),
                  path + "." + std::to_string(I),
                  found),
     ...);
  }
};

template <typename Range, typename Element>
struct RangeResults {
  static constexpr bool kHoldsTensors = ResultWalk<Element>::kHoldsTensors;

  static void walk(const Results<Range>& parts,
                   const Path& path,
                   Found& found) {
    expect_alike(
        parts,
        path,
        "as many elements",
        [](const Range& range) { return range.size(); },
        [](size_t size) { return std::to_string(size); });
    for (size_t k = 0; k < parts[0]->size(); ++k) {
      walk_results(results_at(parts, [k](Range& range) { return &range[k]; }),
                   path + "[" + std::to_string(k) + "]",
                   found);
    }
  }
};

template <typename T, typename A>
struct ResultWalk<std::vector<T, A>> : RangeResults<std::vector<T, A>, T> {};
template <typename T, size_t N>
struct ResultWalk<std::array<T, N>> : RangeResults<std::array<T, N>, T> {};

template <typename Key>
std::string show_key(const Key& key) {
  if constexpr (std::is_convertible_v<const Key&, std::string>) {
    return '"' + std::string(key) + '"';
  } else if constexpr (std::is_arithmetic_v<Key>) {
    return std::to_string(key);
  } else {
    return "a key";
  }
}

template <typename Map>
struct MapResults {
  static constexpr bool kHoldsTensors =
      ResultWalk<typename Map::mapped_type>::kHoldsTensors;

  static void walk(const Results<Map>& parts, const Path& path, Found& found) {
    for (size_t i = 1; i < parts.size(); ++i) {
      if (const auto* key = key_missing(*parts[0], *parts[i])) {
        refuse(path, "keys", show_key(*key), "none such", i);
      }
      if (const auto* key = key_missing(*parts[i], *parts[0])) {
        refuse(path, "keys", "none such", show_key(*key), i);
      }
    }
    for (const auto& item : *parts[0]) {
      const auto& key = item.first;
      walk_results(
          results_at(parts, [&](Map& map) { return &map.find(key)->second; }),
          path + "[" + show_key(key) + "]",
          found);
    }
  }

 private:
  /// A key of `a` that `b` lacks, or null.
  static const typename Map::key_type* key_missing(const Map& a, const Map& b) {
    for (const auto& item : a) {
      if (b.find(item.first) == b.end()) {
        return &item.first;
      }
    }
    return nullptr;
  }
};

template <typename K, typename V, typename C, typename A>
struct ResultWalk<std::map<K, V, C, A>> : MapResults<std::map<K, V, C, A>> {};
template <typename K, typename V, typename H, typename E, typename A>
struct ResultWalk<std::unordered_map<K, V, H, E, A>>
    : MapResults<std::unordered_map<K, V, H, E, A>> {};

template <typename T>
struct ResultWalk<std::optional<T>> {
  static constexpr bool kHoldsTensors = ResultWalk<T>::kHoldsTensors;

  static void walk(const Results<std::optional<T>>& parts,
                   const Path& path,
                   Found& found) {
    expect_alike(
        parts,
        path,
        "optionals",
        [](const std::optional<T>& value) { return value.has_value(); },
        [](bool has_value) { return has_value ? "a value" : "none"; });
    if (parts[0]->has_value()) {
      walk_results(
          results_at(parts, [](std::optional<T>& value) { return &*value; }),
          path,
          found);
    }
  }
};

template <typename Tuple, typename... Elements>
struct TupleResults {
  static constexpr bool kHoldsTensors =
      (ResultWalk<Elements>::kHoldsTensors || ...);

  static void walk(const Results<Tuple>& parts,
                   const Path& path,
                   Found& found) {
    walk(parts, path, found, std::index_sequence_for<Elements...>());
  }

 private:
  template <size_t... I>
  static void walk(const Results<Tuple>& parts,
                   const Path& path,
                   Found& found,
                   std::index_sequence<I...>) {
    (walk_results(
         results_at(parts, [](Tuple& tuple) { return &std::get<I>(tuple); }),
         path + "[" + std::to_string(I) + "]",
         found),
     ...);
  }
};

template <typename... T>
struct ResultWalk<std::tuple<T...>> : TupleResults<std::tuple<T...>, T...> {};
template <typename A, typename B>
struct ResultWalk<std::pair<A, B>> : TupleResults<std::pair<A, B>, A, B> {};

}  // namespace dp::detail
