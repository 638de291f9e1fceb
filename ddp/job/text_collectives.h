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
/// @param purpose  for the errors of the wait: "all-gather for <purpose>".
std::vector<std::string> all_gather_text(c10d::Backend& group,
                                         c10::Device device,
                                         const std::string& mine,
                                         const std::string& purpose);

/// Checks that all ranks have equal lines, for example one for each parameter
/// of a module. Exchanges only a SHA-1 digest if all ranks agree, else rank 0's
/// lines and the first line that differs. Collective.
///
/// @param device  as in `all_gather_text`.
/// @param subject  name of the compared lines, for the error: "module".
/// @param advice  remedy for the user, for the error.
/// @param problem  the reason why this rank cannot continue, or "".
/// @throws c10::Error, the same on every rank, if a rank has a problem; else
///   for the first line that differs: "Expected the same <subject> on all
///   ranks, but got on ranks 0-2: <line>; on rank 3: <line>; <advice>". A rank
///   without the line has "nothing".
void verify_across_ranks(c10d::Backend& group,
                         c10::Device device,
                         const std::vector<std::string>& lines,
                         const std::string& subject,
                         const std::string& advice,
                         const std::string& problem = "");

/// Returns the text of rank `from` on every rank. Collective.
///
/// @param purpose  for the errors of the wait: "broadcast for <purpose>".
std::string broadcast_text(c10d::Backend& group,
                           c10::Device device,
                           const std::string& text,
                           const std::string& purpose,
                           int from = 0);

/// Returns the texts of all ranks on rank 0, by rank, and an empty list on the
/// other ranks. For large texts: a rank other than 0 holds one beside its own
/// at a time. Collective.
///
/// @param purpose  for the errors of the wait: "broadcast for <purpose>".
std::vector<std::string> gather_text(c10d::Backend& group,
                                     c10::Device device,
                                     const std::string& mine,
                                     const std::string& purpose);

}  // namespace ddp::detail
