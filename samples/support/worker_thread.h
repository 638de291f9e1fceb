#pragma once

#include <torch/types.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace samples {

/// A thread that computes one tensor after the other. What it is asked for runs
/// under the caller's thread-local settings (no_grad, profiler), so that
/// autograd records it as if the caller had computed it.
///
/// Example:
/// @code
///   samples::WorkerThread second;
///   auto output = second.run([=] { return stage->forward(hidden); });
///   output.get();
/// @endcode
class WorkerThread {
 public:
  WorkerThread();
  /// Finishes what it was asked for.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  /// The future gives the tensor, or throws what `task` has thrown.
  std::future<torch::Tensor> run(std::function<torch::Tensor()> task);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<torch::Tensor()>> tasks_;
  bool is_ending_ = false;
  std::thread thread_;  // last: the others are there when it starts
};

}  // namespace samples
