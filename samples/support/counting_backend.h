#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace samples {

/// Bytes of the tensors that one rank gave to collectives.
struct CollectiveBytes {
  int64_t all_reduce = 0;
  int64_t broadcast = 0;
  int64_t all_gather = 0;
};

/// Messages and collectives of another backend, counted. Of point-to-point
/// messages, what goes out is what the peers' receives ask for: no other bytes
/// of the program's are sent. What a collective sends for the bytes given to
/// it is up to the other backend.
///
/// Example:
/// @code
///   samples::CountingBackend counted(ddp::process_group());
///   samples::ring_allreduce(tensor, counted);
///   counted.take_bytes_sent();
/// @endcode
class CountingBackend : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  explicit CountingBackend(c10::intrusive_ptr<c10d::Backend> inner);

  /// Bytes of the tensors given to `send` since the last call.
  int64_t take_bytes_sent();
  /// What collectives were given since the last call.
  CollectiveBytes take_collective_bytes();

  const std::string getBackendName() const override;
  bool supportsCoalescing() const override;
  void startCoalescing() override;
  Work endCoalescing() override;
  Work send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  Work recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  Work allreduce(std::vector<at::Tensor>& tensors,
                 const c10d::AllreduceOptions& options) override;
  Work broadcast(std::vector<at::Tensor>& tensors,
                 const c10d::BroadcastOptions& options) override;
  Work allgather(std::vector<std::vector<at::Tensor>>& outputs,
                 std::vector<at::Tensor>& inputs,
                 const c10d::AllgatherOptions& options) override;

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
  int64_t bytes_sent_ = 0;
  CollectiveBytes collectives_;
};

}  // namespace samples
