#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Gathers the texts of all ranks on every rank, by rank. The texts may differ
/// in length. Collective.
///
/// @param device  a device that the backend supports: the CPU for Gloo, the
///   rank's GPU for NCCL.
std::vector<std::string> all_gather_text(c10d::Backend& group,
                                         c10::Device device,
                                         const std::string& mine);

/// Returns true if the texts of all ranks are equal. Exchanges only their SHA-1
/// digests. Collective.
bool are_texts_equal(c10d::Backend& group,
                     c10::Device device,
                     const std::string& mine);

/// Returns the text of rank `from` on every rank. Collective.
std::string broadcast_text(c10d::Backend& group,
                           c10::Device device,
                           const std::string& text,
                           int from = 0);

/// Returns the fields of a rank's message; see `ddp/base/text/record.h`.
/// @throws c10::Error for a text that is no record: the rank was linked with
///   another version of this library.
std::vector<std::string> fields_of(const std::string& message);

}  // namespace ddp::detail
