#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "ddp/detail/process_group/backends.h"

namespace ddp::detail {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSpec& spec) {
  set_current_device(spec.device);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = spec.timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      spec.store, spec.rank, spec.size, std::move(options));
  // Connecting now turns a bad device or network into an error of the set-up
  // instead of one of the first step.
  backend->eagerConnectSingleDevice(spec.device);
  return backend;
}

int nccl_device_count() {
  return c10::cuda::device_count();
}

void set_current_device(c10::Device device) {
  if (device.is_cuda()) {
    c10::cuda::set_device(device.index());
  }
}

}  // namespace ddp::detail
