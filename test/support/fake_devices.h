#pragma once

#include <c10/core/Device.h>

#include "ddp/job/detail/forwarding_backend.h"

namespace ddp::test {

/// Devices in the memory of this process, so that tests of modules on several
/// devices need no GPU: autograd has a thread for each, tensors of one do not
/// mix with another's, and every operation computes on the CPU.
///
/// In a program of its own: they are there from the start, as LibTorch's
/// "private use" devices.
constexpr int kFakeDevices = 8;

/// Device `index`, below kFakeDevices.
c10::Device fake_device(int index);

/// Another backend's collectives for tensors of fake devices: it gets the same
/// memory as CPU tensors.
class FakeDeviceBackend : public detail::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override;
  Work allgather(TensorLists& outputs,
                 Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output,
                       at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work alltoall_base(at::Tensor& output,
                     at::Tensor& input,
                     std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override;
};

}  // namespace ddp::test
