#include "dp/detail/data_parallel/intraop_pause.h"

#include <latch>

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>

#include "ddp/detail/sanitizers.h"

#ifdef DDP_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace dp::detail {
namespace {

// ThreadSanitizer does not see how OpenMP starts and joins its threads.
#ifdef DDP_THREAD_SANITIZER
char fork_and_join;

void before_fork_or_join() {
  __tsan_release(&fork_and_join);
}

void after_fork_or_join() {
  __tsan_acquire(&fork_and_join);
}
#else
void before_fork_or_join() {}
void after_fork_or_join() {}
#endif

}  // namespace

void while_intraop_threads_sleep(const std::function<void()>& work) {
  // LibTorch's own thread pool does not spin, and serves the other threads too.
  if (AT_PARALLEL_OPENMP == 0) {
    work();
    return;
  }
  // An element for each thread. at::parallel_for would need this file's OpenMP
  // to be LibTorch's; a loop over a tensor runs inside LibTorch.
  const auto elements = at::empty({at::get_num_threads()}, at::kByte);
  const auto* first = static_cast<const char*>(elements.const_data_ptr());
  std::latch done(1);
  auto iterator = at::TensorIterator::borrowing_nullary_op(elements);
  const auto run = [&](char** data, const int64_t*, int64_t, int64_t) {
    after_fork_or_join();
    if (data[0] == first) {
      const auto wake = c10::make_scope_exit([&] { done.count_down(); });
      work();
    } else {
      done.wait();
      before_fork_or_join();
    }
  };
  before_fork_or_join();
  iterator.for_each(run, /*grain_size=*/1);
  after_fork_or_join();
}

}  // namespace dp::detail
