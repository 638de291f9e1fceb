#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ddp::detail {

/// Forwards collectives and messages to another backend. `allreduce_sparse`,
/// `allgather_coalesced`, `allgather_into_tensor_coalesced`,
/// `reduce_scatter_tensor_coalesced` and `monitoredBarrier` are not forwarded
/// and throw c10::Error.
/// Base class of backends that count, reorder or change some of the calls.
///
/// Example:
/// @code
///   struct Counting : ddp::detail::ForwardingBackend {
///     using ForwardingBackend::ForwardingBackend;
///     Work allreduce(std::vector<at::Tensor>& tensors,
///                    const c10d::AllreduceOptions& options) override {
///       ++count;
///       return ForwardingBackend::allreduce(tensors, options);
///     }
///     int count = 0;
///   };
/// @endcode
class ForwardingBackend : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  explicit ForwardingBackend(c10::intrusive_ptr<c10d::Backend> inner);

  /// The inner backend; null after `release`.
  const c10d::Backend* forwards_to() const { return inner_.get(); }

  const std::string getBackendName() const override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort() override;
  void shutdown() override;
  c10::intrusive_ptr<Options> getBackendOptions() override;

  bool supportsCoalescing() const override;
  void startCoalescing() override;
  Work endCoalescing() override;

  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(TensorLists& outputs,
                 Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output,
                       at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work gather(TensorLists& outputs,
              Tensors& inputs,
              const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs,
               TensorLists& inputs,
               const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs,
                      TensorLists& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output,
                            at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output,
                     at::Tensor& input,
                     std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs,
                Tensors& inputs,
                const c10d::AllToAllOptions& options) override;
  Work barrier(const c10d::BarrierOptions& options) override;

  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;

 protected:
  /// @throws c10::Error if the inner backend was released.
  c10d::Backend& inner() const;

  /// Returns the backend that executes the next collective. Called once for
  /// each collective.
  /// @param device  device of the collective's tensors, if it has any.
  virtual c10d::Backend& for_collective(
      const std::optional<c10::Device>& /*device*/) {
    return inner();
  }
  /// A collective, for errors that compare the ranks' calls.
  struct Collective {
    const char* name;
    std::optional<c10::Device> device;
    at::TensorList sized = {};  ///< of the same sizes on all ranks
  };
  /// Called once a collective has been started.
  virtual void has_started(const Collective& /*collective*/,
                           const Work& /*work*/) {}
  /// Returns the backend that executes the next message. Called once for each
  /// message.
  virtual c10d::Backend& for_message() { return inner(); }

  const c10::intrusive_ptr<c10d::Backend>& shared() const { return inner_; }
  /// Gives up the inner backend and returns it.
  c10::intrusive_ptr<c10d::Backend> release();

 private:
  template <class Call>
  Work start(const Collective& collective, const Call& call);

  c10::intrusive_ptr<c10d::Backend> inner_;
};

}  // namespace ddp::detail
