#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/detail/parameter_server/packet.h"

namespace dp::detail {

/// The gradients of one push as they come, in one packet or several: of what
/// comes twice the later counts, and `kKept` leaves what came before.
class HeldGradients {
 public:
  /// @param memory  is taken for all of them that it has room for.
  explicit HeldGradients(at::Tensor memory) : memory_(std::move(memory)) {}

  /// Flat memory for a packet of these contents, to be filled.
  at::Tensor lend(const std::vector<at::Tensor>& parameters,
                  const Contents& contents);

  /// Undefined where there is none. They share the packets' memory.
  /// @throws c10::Error when they have rows that a parameter has not.
  std::vector<at::Tensor> all(const std::vector<at::Tensor>& parameters) const;

  /// Bytes of what has come.
  int64_t bytes() const;
  /// For other gradients, when those of `all` are gone.
  const at::Tensor& memory() const { return memory_; }
  /// Bytes that all of them would have needed; 0 when the memory sufficed.
  int64_t missing_room() const { return used_ < size_ ? size_ : 0; }

 private:
  at::Tensor memory_;
  int64_t used_ = 0;  // bytes of it
  int64_t size_ = 0;  // of all packets
  std::vector<Packet> packets_;
};

}  // namespace dp::detail
