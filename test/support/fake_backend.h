#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ddp::test {

/// A backend without peers: records what it is asked for, leaves the data as it
/// is, and has every work done at once.
class FakeBackend : public c10d::Backend {
 public:
  struct Call {
    std::string name;
    int64_t numel;
  };

  explicit FakeBackend(int size) : Backend(/*rank=*/0, size) {}

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
  struct Done : c10d::Work {
    explicit Done(at::Tensor tensor) : tensor(std::move(tensor)) {}
    bool isCompleted() override { return true; }
    bool wait(std::chrono::milliseconds) override { return true; }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
      auto future = c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()));
      future->markCompleted(std::vector<at::Tensor>{tensor});
      return future;
    }
    at::Tensor tensor;
  };

  c10::intrusive_ptr<c10d::Work> record(const char* name,
                                        const at::Tensor& tensor) {
    calls_.push_back({name, tensor.numel()});
    return c10::make_intrusive<Done>(tensor);
  }

  std::vector<Call> calls_;
};

}  // namespace ddp::test
