#include "samples/support/worker_thread.h"

#include <ATen/ThreadLocalState.h>

namespace samples {

WorkerThread::WorkerThread() : thread_([this] { work(); }) {}

WorkerThread::~WorkerThread() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::future<torch::Tensor> WorkerThread::run(
    std::function<torch::Tensor()> task) {
  std::packaged_task<torch::Tensor()> packed(
      [settings = at::ThreadLocalState(), task = std::move(task)] {
        const at::ThreadLocalStateGuard guard(settings);
        return task();
      });
  auto result = packed.get_future();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(packed));
  }
  changed_.notify_one();
  return result;
}

void WorkerThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_ending_ || !tasks_.empty(); });
    if (tasks_.empty()) {
      return;
    }
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace samples
