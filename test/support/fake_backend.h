#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "test/support/done_work.h"

namespace ddp::test {

/// A backend without peers: records its calls, leaves the data unchanged, and
/// returns completed work.
class FakeBackend : public c10d::Backend {
 public:
  struct Call {
    std::string name;
    int64_t numel;
  };

  explicit FakeBackend(int size, int rank = 0) : Backend(rank, size) {}

  const std::string getBackendName() const override { return "fake"; }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions&) override {
    return record("allreduce", tensors[0]);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions&) override {
    return record("broadcast", tensors[0]);
  }

  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions&) override {
    for (auto& output : outputs[0]) {
      output.copy_(inputs[0]);
    }
    return record("allgather", inputs[0]);
  }

  std::vector<Call> take_calls() { return std::exchange(calls_, {}); }

 private:
  c10::intrusive_ptr<c10d::Work> record(const char* name,
                                        const at::Tensor& tensor) {
    calls_.push_back({name, tensor.numel()});
    return c10::make_intrusive<DoneWork>(tensor);
  }

  std::vector<Call> calls_;
};

}  // namespace ddp::test
