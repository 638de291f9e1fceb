#pragma once

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace samples {

/// A c10d store between a process and those that it forks. It lies in memory
/// and goes with the last of them, however they end.
///
/// Example:
/// @code
///   const samples::ForkStore shared;  // before the fork
///   ddp::SpawnContext ranks(
///       [&](int) { samples::put(*shared.open(), "answer", 42); }, 1);
///   samples::get<int>(*shared.open(), "answer");
/// @endcode
class ForkStore {
 public:
  /// @throws c10::Error when there is no memory.
  ForkStore();
  ~ForkStore();
  ForkStore(const ForkStore&) = delete;
  ForkStore& operator=(const ForkStore&) = delete;

  /// The store for this process. It must not outlive this object.
  c10::intrusive_ptr<c10d::Store> open() const;

 private:
  int file_;
};

/// Sets a key to the bytes of a number or a struct of numbers.
template <typename T>
void put(c10d::Store& store, const std::string& key, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<uint8_t> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  store.set(key, bytes);
}

/// Waits for a key that `put` sets, and returns its value.
template <typename T>
T get(c10d::Store& store, const std::string& key) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<uint8_t> bytes = store.get(key);
  TORCH_CHECK(bytes.size() == sizeof(T),
              "Expected ",
              sizeof(T),
              " bytes for ",
              key,
              ", but got ",
              bytes.size());
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace samples
