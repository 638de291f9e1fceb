#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ddp::test {

/// Work that is already complete at construction.
class DoneWork : public c10d::Work {
 public:
  explicit DoneWork(at::Tensor result) : result_(std::move(result)) {}

  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(std::vector<at::Tensor>{result_});
    return future;
  }

 private:
  at::Tensor result_;
};

}  // namespace ddp::test
