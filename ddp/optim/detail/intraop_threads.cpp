#include "ddp/optim/detail/intraop_threads.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>

#include "ddp/base/sanitizers.h"

#ifdef DDP_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace ddp::detail {
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

void in_intraop_threads(int64_t tasks,
                        const std::function<void(int64_t)>& work) {
  // One element per task. at::parallel_for would require that this file uses
  // the same OpenMP as LibTorch; a loop over a tensor runs inside LibTorch.
  const auto elements = at::empty({tasks}, at::kByte);
  const auto* first = static_cast<const char*>(elements.const_data_ptr());
  auto iterator = at::TensorIterator::borrowing_nullary_op(elements);
  const auto run = [&](char** data, const int64_t*, int64_t n, int64_t rows) {
    after_fork_or_join();
    const auto joined = c10::make_scope_exit(before_fork_or_join);
    const int64_t begin = data[0] - first;
    for (int64_t task = begin; task < begin + n * rows; ++task) {
      work(task);
    }
  };
  before_fork_or_join();
  iterator.for_each(run, /*grain_size=*/1);
  after_fork_or_join();
}

}  // namespace ddp::detail
