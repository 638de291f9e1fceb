#include <torch/types.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/job/backends.h"
#include "test/support/catch.h"
#include "test/support/rank_threads.h"

namespace fake_gpu::test {
namespace watchdog_test {

constexpr int kRanks = 2;

// Hidden test, run with an injected fault: the process is expected to be
// killed.
TEST_CASE("two ranks reduce, of which one stalls", "[.stall]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = ddp::test::try_rank_threads(kRanks, [&](int rank) {
    ddp::detail::BackendSpec spec;
    spec.store = store;
    spec.rank = rank;
    spec.size = kRanks;
    spec.device = c10::Device(c10::kCUDA, static_cast<int8_t>(rank));
    spec.timeout = std::chrono::seconds(1);
    const auto group = ddp::detail::make_nccl_backend(spec);
    for (int call = 0; call < 3; ++call) {
      std::vector<torch::Tensor> values{torch::ones({4}, spec.device)};
      group->allreduce(values)->wait();
      // The host waits without a time limit; the watchdog does not.
      values[0].cpu();
    }
  });
  FAIL("the stalled collective ended");
}

}  // namespace watchdog_test
}  // namespace fake_gpu::test
