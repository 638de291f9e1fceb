#include "dp/data_parallel/detail/replica_threads.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/thread_name.h>

#include "ddp/tensors/replica_scope.h"
#include "ddp/tensors/streams.h"
#include "dp/base/thread_error.h"

namespace dp::detail {
namespace {

c10::Error wrapped(const std::string& what, const std::string& where) {
  return {{__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
          what + " (" + where + ")"};
}

/// Rethrows `error` with `where` added to its text. A c10::Error keeps its
/// type. Any other exception is nested in a c10::Error.
[[noreturn]] void rethrow_from(const std::exception_ptr& error,
                               const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (c10::Error& caught) {
    caught.add_context(where);
    throw;
  } catch (const std::exception& caught) {
    std::throw_with_nested(wrapped(caught.what(), where));
  } catch (...) {
    std::throw_with_nested(wrapped("An exception of unknown type", where));
  }
}

}  // namespace

class ReplicaThreads::Thread {
 public:
  explicit Thread(size_t replica)
      : thread_([this, replica] {
          c10::setThreadName("dp_replica_" + std::to_string(replica));
          serve();
        }) {}

  ~Thread() {
    start(nullptr);
    thread_.join();
  }

  /// Starts a job. A null job ends the thread.
  void start(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      job_ = std::move(job);
      busy_ = true;
    }
    changed_.notify_all();
  }

  /// Blocks until the job has finished and returns its exception, or null.
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
  std::thread thread_;  // last member, because the thread uses the others
};

ReplicaThreads::ReplicaThreads(std::vector<c10::Device> devices)
    : devices_(std::move(devices)) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].is_cpu()) {
      on_cpu_.push_back(i);
    }
  }
}

ReplicaThreads::~ReplicaThreads() {
  if (!is_own_process()) {
    for (auto& thread : threads_) {
      // The threads do not exist in this process, and a join would block
      // forever.
      static_cast<void>(thread.release());
    }
  }
}

bool ReplicaThreads::is_own_process() const {
  const pid_t process = process_;
  return process == 0 || process == ::getpid();
}

void ReplicaThreads::expect_own_process() const {
  TORCH_CHECK(is_own_process(),
              "Expected forward to be called in process ",
              process_,
              ", which started the threads of the replicas, but got a call in "
              "process ",
              ::getpid(),
              ", which was forked from it and has no threads; fork before the "
              "first forward, or have the child start a program of its own");
}

void ReplicaThreads::run(const std::vector<size_t>& replicas, const Job& job) {
  start();
  if (!on_cpu_.empty()) {
    divide_intraop_threads();
  }
  const at::ThreadLocalState state;  // grad mode, autocast, profiler, ...
  const bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  std::vector<c10::Stream> streams;
  for (const auto device : devices_) {
    streams.push_back(ddp::detail::current_stream(device));
  }
  const auto errors = run_and_wait(replicas, [&](size_t replica) {
    const at::ThreadLocalStateGuard guard(state);
    at::autocast::set_autocast_cache_enabled(autocast_cache);
    const c10::StreamGuard stream(streams[replica]);
    std::optional<ddp::detail::ReplicaScope> scope;
    if (devices_.size() > 1) {
      scope.emplace();
    }
    job(replica);
  });
  for (size_t i = 0; i < errors.size(); ++i) {
    if (errors[i]) {
      rethrow_from(errors[i],
                   c10::str("replica ",
                            replicas[i],
                            " of ",
                            devices_.size(),
                            " on ",
                            devices_[replicas[i]]));
    }
  }
}

void ReplicaThreads::start() {
  if (threads_.empty()) {
    process_ = ::getpid();
  }
  for (size_t i = threads_.size(); i < devices_.size(); ++i) {
    try {
      threads_.push_back(std::make_unique<Thread>(i));
    } catch (const std::system_error& error) {
      TORCH_CHECK(false,
                  thread_error(c10::str("replica ", i, " of ", devices_.size()),
                               error));
    }
  }
}

// If every CPU replica used the caller's number of intra-op threads, the
// replicas would oversubscribe the cores. The number is a thread's own setting,
// but setting it also sets the default of new threads. The caller therefore
// restores its own number afterwards.
void ReplicaThreads::divide_intraop_threads() {
  const int all = at::get_num_threads();
  const int share = std::max(1, all / static_cast<int>(on_cpu_.size()));
  if (share == intraop_share_) {
    return;
  }
  run_and_wait(on_cpu_, [share](size_t) {
    at::get_num_threads();  // initialises the thread with the default first
    at::set_num_threads(share);
  });
  at::set_num_threads(all);
  intraop_share_ = share;
}

std::vector<std::exception_ptr> ReplicaThreads::run_and_wait(
    const std::vector<size_t>& replicas, const Job& job) {
  // No statement may throw between the first start and the last finish.
  std::vector<std::exception_ptr> errors(replicas.size());
  for (const size_t replica : replicas) {
    threads_[replica]->start([&job, replica] { job(replica); });
  }
  for (size_t i = 0; i < replicas.size(); ++i) {
    errors[i] = threads_[replicas[i]]->finish();
  }
  return errors;
}

}  // namespace dp::detail
