#include "dp/detail/data_parallel/intraop_pause.h"

#include <latch>

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>

#include "ddp/detail/intraop_threads.h"

namespace dp::detail {

void while_intraop_threads_sleep(const std::function<void()>& work) {
  // LibTorch's own thread pool does not spin, and serves the other threads too.
  if (AT_PARALLEL_OPENMP == 0) {
    work();
    return;
  }
  std::latch done(1);
  ddp::detail::in_intraop_threads(at::get_num_threads(), [&](int64_t task) {
    if (task == 0) {
      const auto wake = c10::make_scope_exit([&] { done.count_down(); });
      work();
    } else {
      done.wait();
    }
  });
}

}  // namespace dp::detail
