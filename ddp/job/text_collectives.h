#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Gives every rank the texts of all ranks, by rank. Collective. The texts may
/// differ in length.
///
/// @param device  where the backend takes tensors: the CPU for Gloo, the rank's
///   GPU for NCCL.
std::vector<std::string> all_gather_text(c10d::Backend& group,
                                         c10::Device device,
                                         const std::string& mine);

/// Whether the ranks' texts are equal. Collective; exchanges their SHA-1 alone.
bool are_texts_equal(c10d::Backend& group,
                     c10::Device device,
                     const std::string& mine);

/// The text of rank `from` on every rank. Collective.
std::string broadcast_text(c10d::Backend& group,
                           c10::Device device,
                           const std::string& text,
                           int from = 0);

}  // namespace ddp::detail
