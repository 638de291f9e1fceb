// Runs the tests where there is a GPU, else skips them.
#define CATCH_CONFIG_RUNNER
#include <torch/cuda.h>

#include <cstdio>

#include "test/support/catch.h"

int main(int argc, char** argv) {
  if (!torch::cuda::is_available()) {
    std::puts("skipped: LibTorch sees no GPU");
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
