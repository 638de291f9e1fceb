#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/detail/parameter_server/packet.h"

namespace dp::detail {

/// The `.grad`s of parameters as they travel: of a sparse one (COO over the
/// first dimension, as an Embedding's) the rows, nothing where there is none.
///
/// @param memory  is taken where it is large enough.
/// @param kept  by parameter, whether its gradient has travelled already.
///   Empty: none.
Packet pack_gradients(const std::vector<at::Tensor>& parameters,
                      const at::Tensor& memory,
                      const std::vector<bool>& kept = {});

/// The gradients in a packet: they share its memory, sparse where it has rows.
/// @throws c10::Error when it has rows that a parameter has not.
std::vector<at::Tensor> gradients_in(const Packet& packet,
                                     const std::vector<at::Tensor>& parameters);

/// Adds gradients up, in the order in which they are given.
class GradientSum {
 public:
  /// Scales the gradients in place.
  /// @param memory  of theirs. Only that of the first term is kept.
  void add(std::vector<at::Tensor> gradients,
           double share,
           const at::Tensor& memory);

  /// The sum; undefined where no term had a gradient. Its memory lasts until
  /// `clear`, which
  /// gives back the memory that it had of the first term.
  const std::vector<at::Tensor>& gradients() const { return sum_; }
  bool is_empty() const { return sum_.empty(); }
  at::Tensor clear();

 private:
  std::vector<at::Tensor> sum_;
  at::Tensor memory_;
};

}  // namespace dp::detail
