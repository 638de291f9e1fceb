#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/shared_memory/shared_memory.h"

namespace ddp::detail {

/// Maps one memory on all ranks of a group if all of them are on this host, and
/// `is_wanted` on all; otherwise returns null on all ranks. Ranks are on one
/// host if the kernel's boot id and the network namespace are equal, and if the
/// descriptor of the memory has come over a Unix socket from a process of the
/// same user. Rank 0 warns if the ranks are on one host but the memory could
/// not be shared.
///
/// Collective over the group, which takes CPU tensors.
/// @throws the exceptions of the group's collectives.
std::shared_ptr<SharedMemory> share_memory(c10d::Backend& group,
                                           bool is_wanted);

}  // namespace ddp::detail
