#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Returns a second group of the same ranks, in the same order, whose
/// collectives are not ordered with those of `group`. Each group has one for
/// each purpose; the first call makes it, which is collective over its ranks
/// alone. It is closed when the job is left. Null if `group` is not one of the
/// job's groups, nor forwards to one: other backends cannot be made again.
/// @param purpose  one word, the same on all ranks.
/// @throws c10::Error if the ranks cannot be connected.
c10::intrusive_ptr<c10d::Backend> sibling_group(const c10d::Backend& group,
                                                const std::string& purpose);

}  // namespace ddp::detail
