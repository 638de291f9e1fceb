#include "ddp/base/background_task.h"

#include <utility>

#include "ddp/base/block_signals.h"

namespace ddp::detail {

BackgroundTask::~BackgroundTask() {
  if (thread_.joinable()) {
    is_idle() ? thread_.join() : thread_.detach();
  }
}

void BackgroundTask::start(std::function<void()> work) {
  // The future keeps the task until `finish`, but not the work's data.
  std::packaged_task<void()> task([work = std::move(work)]() mutable {
    block_signals();
    const auto once = std::exchange(work, nullptr);
    once();
  });
  auto done = task.get_future();
  thread_ = std::thread(std::move(task));
  done_ = std::move(done);
}

bool BackgroundTask::is_idle() const {
  return !done_.valid() ||
         done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool BackgroundTask::finish(std::chrono::milliseconds patience) {
  if (!done_.valid()) {
    return true;
  }
  if (done_.wait_for(patience) != std::future_status::ready) {
    return false;
  }
  thread_.join();
  done_.get();
  return true;
}

}  // namespace ddp::detail
