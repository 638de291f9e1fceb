#include "ddp/job/backends.h"

namespace ddp::detail {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSpec&) {
  TORCH_CHECK(false,
              "Expected a LibTorch with CUDA for backend \"nccl\", but this "
              "program was built with a CPU-only one; use backend \"gloo\"");
}

void connect_gpu(c10::intrusive_ptr<c10d::Backend>,
                 c10::Device,
                 std::chrono::milliseconds,
                 const PeerFailure&) {}

int nccl_device_count() {
  return 0;
}

std::string no_nccl_device_reason() {
  return "this program was built with a LibTorch without CUDA";
}

void set_current_device(c10::Device) {}

}  // namespace ddp::detail
