#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace samples {

/// Point-to-point messages of another backend, counted. What goes out is what
/// the peers' receives ask for: no other bytes of the program's are sent.
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

  const std::string getBackendName() const override;
  bool supportsCoalescing() const override;
  void startCoalescing() override;
  Work endCoalescing() override;
  Work send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  Work recv(std::vector<at::Tensor>& tensors, int from, int tag) override;

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
  int64_t bytes_sent_ = 0;
};

}  // namespace samples
