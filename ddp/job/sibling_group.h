#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Returns a second group of the same ranks, in the same order. Collectives of
/// the two groups may run in any order. A group has one sibling for each
/// purpose. The first call connects the sibling's ranks and is collective over
/// them; later calls return the same sibling. It is closed when this rank
/// leaves the job. Returns null if `group` is neither a group of the job nor a
/// backend that forwards to one, because ddp cannot create another backend of
/// an unknown kind.
/// @param purpose  one word, the same on all ranks.
/// @throws c10::Error if the ranks cannot be connected.
c10::intrusive_ptr<c10d::Backend> sibling_group(const c10d::Backend& group,
                                                const std::string& purpose);

}  // namespace ddp::detail
