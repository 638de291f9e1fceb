#include "dp/detail/data_parallel/replica_threads.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <c10/util/thread_name.h>

namespace dp::detail {

class ReplicaThreads::Thread {
 public:
  explicit Thread(size_t index)
      : thread_([this, index] {
          c10::setThreadName("dp_replica_" + std::to_string(index));
          serve();
        }) {}

  ~Thread() {
    start(nullptr);
    thread_.join();
  }

  /// Null ends the thread.
  void start(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      job_ = std::move(job);
      busy_ = true;
    }
    changed_.notify_all();
  }

  /// Waits for the job and returns what it threw.
  std::exception_ptr finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
    return std::exchange(error_, nullptr);
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return busy_; });
      if (!job_) {
        return;
      }
      lock.unlock();
      std::exception_ptr error;
      try {
        job_();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      job_ = nullptr;
      error_ = std::move(error);
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;
  std::exception_ptr error_;
  bool busy_ = false;
  std::thread thread_;  // last: it uses the others
};

ReplicaThreads::ReplicaThreads(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    threads_.push_back(std::make_unique<Thread>(i));
  }
}

ReplicaThreads::~ReplicaThreads() = default;

std::vector<std::exception_ptr> ReplicaThreads::run(
    const std::vector<size_t>& members,
    const std::function<void(size_t)>& job) {
  // Nothing may throw between the first start and the last finish.
  std::vector<std::exception_ptr> errors(members.size());
  for (const size_t member : members) {
    threads_[member]->start([&job, member] { job(member); });
  }
  for (size_t i = 0; i < members.size(); ++i) {
    errors[i] = threads_[members[i]]->finish();
  }
  return errors;
}

}  // namespace dp::detail
