#include "test/support/rank_threads.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "ddp/job/error_text.h"

namespace ddp::test {
namespace {

std::string error_of(const std::function<void(int)>& body, int rank) {
  try {
    body(rank);
    return "";
  } catch (const std::exception&) {
    const std::string text = detail::text_of(std::current_exception());
    return text.empty() ? "an exception without a text" : text;
  }
}

/// Records which ranks still run.
class Running {
 public:
  explicit Running(int size) : runs_(size, true) {}

  void ends(int rank) {
    const std::lock_guard lock(mutex_);
    runs_[rank] = false;
    changed_.notify_all();
  }

  /// Returns the ranks that still run after `patience`, as text.
  std::string after(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return names().empty(); });
    return names();
  }

 private:
  std::string names() const {
    std::string text;
    for (size_t rank = 0; rank < runs_.size(); ++rank) {
      if (runs_[rank]) {
        text += (text.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
    return text;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> runs_;
};

}  // namespace

std::vector<std::string> try_rank_threads(
    int size,
    const std::function<void(int rank)>& body,
    std::chrono::milliseconds patience) {
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  Running running(size);
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      errors[rank] = error_of(body, rank);
      running.ends(rank);
    });
  }
  if (const auto stuck = running.after(patience); !stuck.empty()) {
    std::fprintf(stderr,
                 "the threads of these ranks still run after %lld ms: %s\n",
                 static_cast<long long>(patience.count()),
                 stuck.c_str());
    std::abort();
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return errors;
}

void throw_first(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) {
      throw std::runtime_error("rank " + std::to_string(rank) + ": " +
                               errors[rank]);
    }
  }
}

}  // namespace ddp::test
