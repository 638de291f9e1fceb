// Runs the tests where there is a GPU or the stand-in for one, else skips them.
// A test tagged [stand-in] asks for what only the stand-in can tell or promise,
// one tagged [real] for what it has not got.
#include <torch/cuda.h>

#include <cstdio>
#include <cstdlib>

#include "test/fake_gpu/control.h"
#include "test/support/run_tests.h"

namespace {

// A dead collective is to end its rank soon, and ranks that are threads would
// race in LibTorch's one flight recorder.
void prepare_nccl() {
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100", 0);
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
}

}  // namespace

int main(int argc, char** argv) {
  prepare_nccl();
  if (!torch::cuda::is_available()) {
    std::puts("skipped: LibTorch sees no GPU");
    return 77;
  }
  return ddp::test::run_tests(
      argc, argv, fake_gpu::active() ? "~[real]" : "~[stand-in]");
}
