#include "dp/detail/data_parallel/intraop_pause.h"

#include <future>
#include <stdexcept>
#include <thread>

#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>
#include <torch/types.h>

#include "test/dp/threads.h"
#include "test/support/catch.h"

namespace dp::detail {
namespace intraop_pause_test {

/// Enough for LibTorch to share it out among the threads.
double parallel_sum() {
  return torch::ones({1 << 20}).sum().item<double>();
}

TEST_CASE("work runs once, in the calling thread", "[dp]") {
  const int threads = GENERATE(1, 2, 5);
  CAPTURE(threads);
  const auto before = at::get_num_threads();
  const auto restore =
      c10::make_scope_exit([&] { at::set_num_threads(before); });
  at::set_num_threads(threads);
  std::vector<std::thread::id> runs;
  while_intraop_threads_sleep([&] {
    runs.push_back(std::this_thread::get_id());
    CHECK(parallel_sum() == 1 << 20);
  });
  CHECK(runs == std::vector{std::this_thread::get_id()});
  CHECK_FALSE(at::in_parallel_region());
  CHECK(parallel_sum() == 1 << 20);
}

TEST_CASE("what the work throws wakes the threads and passes on", "[dp]") {
  for (int i = 0; i < 3; ++i) {
    CHECK_THROWS_WITH(while_intraop_threads_sleep(
                          [] { throw std::runtime_error("from the work"); }),
                      "from the work");
    CHECK(parallel_sum() == 1 << 20);
  }
}

TEST_CASE("work in the work", "[dp]") {
  int runs = 0;
  while_intraop_threads_sleep([&] {
    while_intraop_threads_sleep([&] { ++runs; });
    // Another thread has intra-op threads of its own.
    auto other = std::async(std::launch::async, [&] {
      while_intraop_threads_sleep([&] { ++runs; });
    });
    test::get_in_time(other, "the work of another thread");
  });
  CHECK(runs == 2);
}

}  // namespace intraop_pause_test
}  // namespace dp::detail
