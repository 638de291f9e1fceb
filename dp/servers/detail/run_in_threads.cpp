#include "dp/servers/detail/run_in_threads.h"

#include <exception>
#include <future>
#include <mutex>
#include <vector>

#include "ddp/base/block_signals.h"

namespace dp::detail {

void run_in_threads(size_t count, const std::function<void(size_t)>& task) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](size_t index) {
    try {
      task(index);
    } catch (...) {
      const std::lock_guard lock(mutex);
      first = first ? first : std::current_exception();
    }
  };
  {
    std::vector<std::future<void>> others;  // their destructors wait
    for (size_t index = 1; index < count; ++index) {
      others.push_back(std::async(std::launch::async, [&run, index] {
        ddp::detail::block_signals();
        run(index);
      }));
    }
    run(0);
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace dp::detail
