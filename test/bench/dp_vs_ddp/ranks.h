#pragma once

#include <c10/util/Exception.h>
#include <sys/types.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "test/bench/dp_vs_ddp/ways.h"

namespace ddp::bench {

/// A c10d store shared by a process and the processes that it forks. The store
/// is in memory and is freed when the last of these processes ends, for any
/// reason.
///
/// Example:
/// @code
///   const ForkStore shared;  // before the fork
///   ddp::spawn([&](int) { put(*shared.open(), "answer", 42); }, 1);
///   get<int>(*shared.open(), "answer");
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

/// The ranks of DistributedDataParallel, controlled by the process that starts
/// them: the ranks make a step when `step` is called.
class Ranks {
 public:
  /// Forks the ranks. This process must not have threads yet.
  explicit Ranks(const WaysOptions& options);
  /// Kills the ranks if they still run.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Makes the ranks run step `number`. Returns the seconds of the slowest
  /// rank.
  double step(int64_t number);

  /// Waits until the ranks have ended and returns their reports.
  std::vector<RankReport> end();

  /// Returns the `parameter_bytes` of rank 0 after the last step.
  std::vector<uint8_t> parameters();

 private:
  template <typename T>
  T take(const std::string& key);
  bool have_ended();

  int count_;
  ForkStore shared_;
  pid_t spawner_;  // process that waits in ddp::spawn; 0 after its end
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace ddp::bench
