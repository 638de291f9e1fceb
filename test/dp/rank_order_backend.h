#pragma once

#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace dp::test {

/// Another backend, but for all-reduces: these add up in the order of the
/// ranks, wherever an element lies in its bucket.
class RankOrderBackend : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  explicit RankOrderBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override {
    return inner_->getBackendName();
  }

  Work broadcast(std::vector<at::Tensor>& tensors,
                 const c10d::BroadcastOptions& options) override {
    return inner_->broadcast(tensors, options);
  }

  Work allgather(std::vector<std::vector<at::Tensor>>& outputs,
                 std::vector<at::Tensor>& inputs,
                 const c10d::AllgatherOptions& options) override {
    return inner_->allgather(outputs, inputs, options);
  }

  /// Done when it returns.
  Work allreduce(std::vector<at::Tensor>& tensors,
                 const c10d::AllreduceOptions& options) override {
    TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM);
    auto& tensor = tensors.at(0);
    std::vector<std::vector<at::Tensor>> terms(1);
    for (int rank = 0; rank < getSize(); ++rank) {
      terms[0].push_back(at::empty_like(tensor));
    }
    inner_->allgather(terms, tensors)->wait();
    tensor.copy_(terms[0][0]);
    for (size_t rank = 1; rank < terms[0].size(); ++rank) {
      tensor.add_(terms[0][rank]);
    }
    return c10::make_intrusive<Done>();
  }

 private:
  struct Done : c10d::Work {
    bool isCompleted() override { return true; }
    bool wait(std::chrono::milliseconds) override { return true; }
  };

  c10::intrusive_ptr<c10d::Backend> inner_;
};

}  // namespace dp::test
