#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/types.h>

#include "test/fake_gpu/control.h"
#include "test/support/catch.h"

namespace fake_gpu::test {
namespace record_stream_test {

constexpr int kSeeds = 20;

torch::Tensor on_device(float value) {
  return torch::full({64}, value, torch::kCUDA);
}

/// A side stream copies a block that is freed at once. If `reuses`, the next
/// tensor of that size is written meanwhile. Returns true if the copy has the
/// original values.
bool copies_before_the_block_changes(bool records, bool reuses) {
  const auto side = c10::cuda::getStreamFromPool();
  const auto result = torch::empty({64}, torch::kCUDA);
  const void* address = nullptr;
  {
    const auto block = on_device(1);
    address = block.data_ptr();
    at::cuda::CUDAEvent written;
    written.record();
    written.block(side);
    const c10::cuda::CUDAStreamGuard guard(side);
    result.copy_(block);
    if (records) {
      block.record_stream(side.unwrap());
    }
  }
  if (reuses) {
    const auto next = on_device(2);
    CHECK((records || next.data_ptr() == address));
  }
  side.synchronize();
  return result.cpu().equal(torch::full({64}, 1.F));
}

int wrong_seeds(Mode mode, bool records, bool reuses) {
  int wrong = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    schedule(mode, seed);
    wrong += copies_before_the_block_changes(records, reuses) ? 0 : 1;
    c10::cuda::device_synchronize();
  }
  return wrong;
}

TEST_CASE("a block freed without record_stream gives wrong values") {
  const bool reuses = GENERATE(false, true);
  CHECK(wrong_seeds(Mode::priority, /*records=*/false, reuses) > 2);
}

TEST_CASE("with record_stream values are right in every mode") {
  for (const Mode mode :
       {Mode::eager, Mode::lazy, Mode::mixed, Mode::priority}) {
    CHECK(wrong_seeds(mode, /*records=*/true, /*reuses=*/true) == 0);
  }
}

}  // namespace record_stream_test
}  // namespace fake_gpu::test
