#include "test/support/local_ranks.h"

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/detail/backends.h"

namespace ddp::test {
namespace {

/// A test that hangs is a failure, not a stuck build.
constexpr std::chrono::seconds kTimeout{60};

/// Keeps the backends until all ranks are through: one that goes early would
/// break the last collective of a slower rank.
class Finish {
 public:
  explicit Finish(int size) : left_(size) {}
  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    --left_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return left_ <= 0; });
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --left_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
};

std::string run_rank(const c10::intrusive_ptr<c10d::Store>& store,
                     int rank,
                     int size,
                     const std::function<void(const Group&)>& body,
                     Finish& finish) {
  try {
    detail::BackendSpec spec;
    spec.store = store;
    spec.rank = rank;
    spec.size = size;
    spec.timeout = kTimeout;
    const Group group = detail::make_gloo_backend(spec);
    body(group);
    finish.arrive_and_wait();
    return "";
  } catch (const c10::Error& error) {
    finish.leave();
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    finish.leave();
    return error.what();
  }
}

}  // namespace

std::vector<std::string> try_ranks(
    int size, const std::function<void(const Group& group)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(size);
  Finish finish(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      errors[rank] = run_rank(store, rank, size, body, finish);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return errors;
}

void run_ranks(int size, const std::function<void(const Group& group)>& body) {
  const auto errors = try_ranks(size, body);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) {
      throw std::runtime_error("rank " + std::to_string(rank) + ": " +
                               errors[rank]);
    }
  }
}

}  // namespace ddp::test
