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
#include <c10/util/Exception.h>

#include "ddp/tensor_walk.h"

namespace dp::detail {

/// Makes one tensor of the replicas'.
class TensorGatherer {
 public:
  virtual ~TensorGatherer() = default;
  virtual at::Tensor gather(const std::vector<at::Tensor>& tensors) = 0;
};

/// Where in the result we are: "[1][\"loss\"]"; "" for the result itself.
using Path = std::string;

/// Says in what `first` and `other`, the first's and a part's, are not alike.
/// @throws c10::Error always.
[[noreturn]] void refuse(const Path& path,
                         const char* what,
                         const std::string& first,
                         const std::string& other,
                         size_t part);

/// Gathers the tensors of `parts`, the replicas' results, into the first.
/// Values that hold no tensor stay as they are in the first.
///
/// Specialised as ddp::detail::TensorWalk is, so that both find the same.
template <typename T>
struct Gather;

template <typename T>
using Results = std::vector<T*>;

template <typename T>
void gather_into(const Results<T>& parts,
                 TensorGatherer& gatherer,
                 const Path& path) {
  Gather<T>::run(parts, gatherer, path);
}

template <typename T>
struct IsReferenceTuple : std::false_type {};
template <typename... T>
struct IsReferenceTuple<std::tuple<T...>>
    : std::bool_constant<(std::is_lvalue_reference_v<T> && ...)> {};

template <typename Access, typename T>
auto results_at(const Results<T>& parts, const Access& access) {
  Results<std::remove_reference_t<decltype(*access(*parts[0]))>> inner;
  for (T* part : parts) {
    inner.push_back(access(*part));
  }
  return inner;
}

template <typename T>
struct Gather {
  static constexpr bool kIsTensor = std::is_base_of_v<at::Tensor, T>;
  static constexpr bool kHoldsTensors =
      kIsTensor || ddp::detail::HasTensorFields<T>::value;

  static void run(const Results<T>& parts,
                  TensorGatherer& gatherer,
                  const Path& path) {
    if constexpr (kIsTensor) {
      gather_tensors(parts, gatherer, path);
    } else if constexpr (kHoldsTensors) {
      using Fields = decltype(tensor_fields(std::declval<const T&>()));
      static_assert(IsReferenceTuple<Fields>::value,
                    "tensor_fields must return std::tie(...)");
      gather_fields(parts,
                    gatherer,
                    path,
                    std::make_index_sequence<std::tuple_size_v<Fields>>());
    }
  }

 private:
  static void gather_tensors(const Results<T>& parts,
                             TensorGatherer& gatherer,
                             const Path& path) {
    std::vector<at::Tensor> tensors(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      tensors[i] = *parts[i];
      if (tensors[i].defined() != tensors[0].defined()) {
        refuse(path,
               "tensors",
               tensors[0].defined() ? "one" : "an undefined one",
               tensors[i].defined() ? "one" : "an undefined one",
               i);
      }
    }
    if (!tensors[0].defined()) {
      return;
    }
    try {
      *parts[0] = T(gatherer.gather(tensors));
    } catch (c10::Error& error) {
      if (!path.empty()) {
        error.add_context("in result" + path);
      }
      throw;
    }
  }

  template <size_t... I>
  static void gather_fields(const Results<T>& parts,
                            TensorGatherer& gatherer,
                            const Path& path,
                            std::index_sequence<I...>) {
    (gather_into(
         results_at(parts,
                    [](T& part) {
                      const auto& field =
                          std::get<I>(tensor_fields(std::as_const(part)));
                      // The results are ours and not const.
                      return const_cast<std::decay_t<decltype(field)>*>(&field);
                    }),
         gatherer,
         path + "." + std::to_string(I)),
     ...);
  }
};

template <typename Range, typename Element>
struct GatherSequence {
  static constexpr bool kHoldsTensors = Gather<Element>::kHoldsTensors;

  static void run(const Results<Range>& parts,
                  TensorGatherer& gatherer,
                  const Path& path) {
    if constexpr (kHoldsTensors) {
      const size_t size = parts[0]->size();
      for (size_t i = 1; i < parts.size(); ++i) {
        if (parts[i]->size() != size) {
          refuse(path,
                 "as many elements",
                 std::to_string(size),
                 std::to_string(parts[i]->size()),
                 i);
        }
      }
      for (size_t k = 0; k < size; ++k) {
        gather_into(results_at(parts, [k](Range& range) { return &range[k]; }),
                    gatherer,
                    path + "[" + std::to_string(k) + "]");
      }
    }
  }
};

template <typename T, typename A>
struct Gather<std::vector<T, A>> : GatherSequence<std::vector<T, A>, T> {};
template <typename T, size_t N>
struct Gather<std::array<T, N>> : GatherSequence<std::array<T, N>, T> {};

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
struct GatherMap {
  static constexpr bool kHoldsTensors =
      Gather<typename Map::mapped_type>::kHoldsTensors;

  static void run(const Results<Map>& parts,
                  TensorGatherer& gatherer,
                  const Path& path) {
    if constexpr (kHoldsTensors) {
      for (size_t i = 1; i < parts.size(); ++i) {
        if (const auto* key = key_missing(*parts[0], *parts[i])) {
          refuse(path, "keys", show_key(*key), "none such", i);
        }
        if (const auto* key = key_missing(*parts[i], *parts[0])) {
          refuse(path, "keys", "none such", show_key(*key), i);
        }
      }
      for (auto& [key, value] : *parts[0]) {
        gather_into(results_at(parts,
                               [&key = key](Map& map) {
                                 return &map.find(key)->second;
                               }),
                    gatherer,
                    path + "[" + show_key(key) + "]");
      }
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
struct Gather<std::map<K, V, C, A>> : GatherMap<std::map<K, V, C, A>> {};
template <typename K, typename V, typename H, typename E, typename A>
struct Gather<std::unordered_map<K, V, H, E, A>>
    : GatherMap<std::unordered_map<K, V, H, E, A>> {};

template <typename T>
struct Gather<std::optional<T>> {
  static constexpr bool kHoldsTensors = Gather<T>::kHoldsTensors;

  static void run(const Results<std::optional<T>>& parts,
                  TensorGatherer& gatherer,
                  const Path& path) {
    if constexpr (kHoldsTensors) {
      const auto show = [](const std::optional<T>& value) {
        return value ? "a value" : "none";
      };
      for (size_t i = 1; i < parts.size(); ++i) {
        if (parts[i]->has_value() != parts[0]->has_value()) {
          refuse(path, "optionals", show(*parts[0]), show(*parts[i]), i);
        }
      }
      if (parts[0]->has_value()) {
        gather_into(
            results_at(parts, [](std::optional<T>& value) { return &*value; }),
            gatherer,
            path);
      }
    }
  }
};

template <typename Tuple, typename... Elements>
struct GatherTuple {
  static constexpr bool kHoldsTensors =
      (Gather<Elements>::kHoldsTensors || ...);

  static void run(const Results<Tuple>& parts,
                  TensorGatherer& gatherer,
                  const Path& path) {
    run(parts, gatherer, path, std::index_sequence_for<Elements...>());
  }

 private:
  template <size_t... I>
  static void run(const Results<Tuple>& parts,
                  TensorGatherer& gatherer,
                  const Path& path,
                  std::index_sequence<I...>) {
    (gather_into(
         results_at(parts, [](Tuple& tuple) { return &std::get<I>(tuple); }),
         gatherer,
         path + "[" + std::to_string(I) + "]"),
     ...);
  }
};

template <typename... T>
struct Gather<std::tuple<T...>> : GatherTuple<std::tuple<T...>, T...> {};
template <typename A, typename B>
struct Gather<std::pair<A, B>> : GatherTuple<std::pair<A, B>, A, B> {};

}  // namespace dp::detail
