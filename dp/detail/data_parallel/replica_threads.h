#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace dp::detail {

/// Threads that are kept, one a replica, and run jobs together.
///
/// Thread contract: one caller at a time.
class ReplicaThreads {
 public:
  explicit ReplicaThreads(size_t count);
  /// Ends the threads and waits for them.
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  size_t size() const { return threads_.size(); }

  /// Runs `job(i)` on thread i for each i of `members`, all at once, and waits
  /// for all of them. Returns what each threw, null for nothing.
  std::vector<std::exception_ptr> run(
      const std::vector<size_t>& members,
      const std::function<void(size_t member)>& job);

 private:
  class Thread;
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace dp::detail
