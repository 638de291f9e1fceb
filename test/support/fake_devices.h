#pragma once

#include <c10/core/Device.h>

#include "test/support/forwarding_backend.h"

namespace ddp::test {

/// Fake devices in the memory of this process, so that tests of modules on
/// several devices need no GPU. Autograd has a thread for each device, tensors
/// of different devices cannot be mixed, and every operation is computed on the
/// CPU.
///
/// Use them in a separate test program: they are registered at its start, as
/// LibTorch's "private use" devices.
constexpr int kFakeDevices = 8;

/// Returns device `index`, which must be below kFakeDevices.
c10::Device fake_device(int index);

/// Adapts a backend to tensors of fake devices: passes the same memory as CPU
/// tensors.
class FakeDeviceBackend : public ForwardingBackend {
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
