#pragma once

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace samples {

/// A c10d store shared by a process and the processes that it forks. The store
/// is in memory and is freed when the last of these processes ends, for any
/// reason.
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
  /// @throws c10::Error if no memory is available.
  ForkStore();
  ~ForkStore();
  ForkStore(const ForkStore&) = delete;
  ForkStore& operator=(const ForkStore&) = delete;

  /// Returns the store for this process. The store must not outlive this
  /// object.
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

/// Blocks until `put` has set a key, and returns its value.
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
