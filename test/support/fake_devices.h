#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

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
class FakeDeviceBackend : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  explicit FakeDeviceBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override;
  Work broadcast(std::vector<at::Tensor>& tensors,
                 const c10d::BroadcastOptions& options) override;
  Work allreduce(std::vector<at::Tensor>& tensors,
                 const c10d::AllreduceOptions& options) override;
  Work allgather(std::vector<std::vector<at::Tensor>>& outputs,
                 std::vector<at::Tensor>& inputs,
                 const c10d::AllgatherOptions& options) override;

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
};

}  // namespace ddp::test
