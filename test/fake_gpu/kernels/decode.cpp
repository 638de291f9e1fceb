#include "test/fake_gpu/kernels/decode.h"

#include "test/fake_gpu/kernels/template_name.h"
#include "test/fake_gpu/log.h"

namespace fake_gpu {

std::function<bool()> decode(const std::string& name,
                             void** arguments,
                             unsigned blocks) {
  std::function<bool()> step;
  if (contains(name, "at::native::vectorized_elementwise_kernel<") ||
      contains(name, "at::native::unrolled_elementwise_kernel<")) {
    step = decode_contiguous(name, arguments);
  } else if (contains(name, "at::native::elementwise_kernel<")) {
    step = decode_strided(name, arguments);
  } else if (contains(name, "multi_tensor_apply_kernel<")) {
    step = decode_foreach_copy(name, arguments, blocks);
  } else if (contains(name, "spin_kernel(")) {  // at::cuda::sleep
    step = [] { return true; };
  }
  if (!step) {
    fail(
        "no stand-in for this kernel; add one in test/fake_gpu/kernels, or its "
        "operator to test/fake_gpu/ops/operators.cpp: " +
        name);
  }
  return step;
}

}  // namespace fake_gpu
