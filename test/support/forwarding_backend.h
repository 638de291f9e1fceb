#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ddp::test {

/// Forwards to another backend. Base class of backends that count, reorder or
/// change some of the calls. No group of the job, also around one.
class ForwardingBackend : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  explicit ForwardingBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override {
    return inner_->getBackendName();
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return inner_->getBackendOptions();
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    inner_->setTimeout(timeout);
  }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override {
    return inner_->broadcast(tensors, options);
  }
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override {
    return inner_->allreduce(tensors, options);
  }
  Work allgather(TensorLists& outputs,
                 Tensors& inputs,
                 const c10d::AllgatherOptions& options) override {
    return inner_->allgather(outputs, inputs, options);
  }
  Work _allgather_base(at::Tensor& output,
                       at::Tensor& input,
                       const c10d::AllgatherOptions& options) override {
    return inner_->_allgather_base(output, input, options);
  }
  Work gather(TensorLists& outputs,
              Tensors& inputs,
              const c10d::GatherOptions& options) override {
    return inner_->gather(outputs, inputs, options);
  }
  Work reduce_scatter(Tensors& outputs,
                      TensorLists& inputs,
                      const c10d::ReduceScatterOptions& options) override {
    return inner_->reduce_scatter(outputs, inputs, options);
  }
  Work _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    return inner_->_reduce_scatter_base(output, input, options);
  }
  Work alltoall_base(at::Tensor& output,
                     at::Tensor& input,
                     std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override {
    return inner_->alltoall_base(
        output, input, output_sizes, input_sizes, options);
  }
  Work barrier(const c10d::BarrierOptions& options) override {
    return inner_->barrier(options);
  }
  Work send(Tensors& tensors, int to, int tag) override {
    return inner_->send(tensors, to, tag);
  }
  Work recv(Tensors& tensors, int from, int tag) override {
    return inner_->recv(tensors, from, tag);
  }

 protected:
  c10d::Backend& inner() const { return *inner_; }

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
};

}  // namespace ddp::test
