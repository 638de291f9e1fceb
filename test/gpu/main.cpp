// Runs the tests if there is a GPU or the stand-in for one, otherwise skips
// them. A test with the tag [stand-in] needs properties of the stand-in; a test
// with the tag [real] needs properties that the stand-in does not have.
#include <torch/cuda.h>

#include <ATen/Context.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "test/fake_gpu/control.h"
#include "test/support/listener.h"
#include "test/support/run_tests.h"

namespace {

/// Numbers of tests with and without checks. A test that needs more GPUs than
/// there are has none. A program of mostly skipped tests reports that it is
/// skipped.
int tests_with_checks = 0;
int tests_without_checks = 0;

/// Resets the schedule to that of the environment before each test.
class GpuTests : public ddp::test::Listener {
 public:
  using ddp::test::Listener::Listener;

  void testCaseStarting(const Catch::TestCaseInfo& test) override {
    ddp::test::Listener::testCaseStarting(test);
    const char* mode = std::getenv("FAKE_GPU_MODE");
    const char* seed = std::getenv("FAKE_GPU_SEED");
    if (mode != nullptr && seed != nullptr) {
      fake_gpu::schedule(mode_of(mode), std::strtoull(seed, nullptr, 10));
    }
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ddp::test::Listener::testCaseEnded(stats);
    (stats.totals.assertions.total() > 0 ? tests_with_checks
                                         : tests_without_checks)++;
  }

 private:
  static fake_gpu::Mode mode_of(const std::string& name) {
    using fake_gpu::Mode;
    return name == "eager"   ? Mode::eager
           : name == "mixed" ? Mode::mixed
           : name == "lazy"  ? Mode::lazy
                             : Mode::priority;
  }
};

// A failed collective shall end its rank quickly. LibTorch's flight recorder is
// disabled: there is one per process, and ranks in threads would race in it.
void prepare_nccl() {
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100", 0);
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
}

}  // namespace

CATCH_REGISTER_LISTENER(GpuTests)

int main(int argc, char** argv) {
  prepare_nccl();
  if (!torch::cuda::is_available()) {
    std::puts("skipped: LibTorch sees no GPU");
    return 77;
  }
  // Tests compare with the precision of float.
  at::globalContext().setAllowTF32CuDNN(false);
  const int code = ddp::test::run_tests(
      argc, argv, fake_gpu::active() ? "~[real]" : "~[stand-in]");
  // A list of the tests also checks nothing, but was requested.
  const bool lists =
      argc > 1 && std::string(argv[argc - 1]).rfind("--list", 0) == 0;
  if (code == 0 && tests_with_checks <= tests_without_checks && !lists) {
    std::printf("skipped: %d of %d tests need more GPUs than there are\n",
                tests_without_checks,
                tests_with_checks + tests_without_checks);
    return 77;
  }
  return code;
}
