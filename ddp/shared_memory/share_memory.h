#pragma once

#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/shared_memory/shared_memory.h"

namespace ddp::detail {

/// Returns a text that only processes of this kernel have, with equal
/// namespaces of processes and of the network; empty if the kernel does not
/// say.
std::string host_name();

/// Maps one memory on all ranks of a group; null on all ranks if a rank is
/// alone, if the hosts differ or, with a warning of rank 0, if a rank could not
/// map the memory. The ranks open the file of rank 0 below /proc, which the
/// kernel allows to processes of the same user.
///
/// Collective over the group, which takes CPU tensors.
/// @param host  `host_name()`, or empty if this rank wants no memory.
/// @throws c10::Error if a collective fails.
std::shared_ptr<SharedMemory> share_memory(c10d::Backend& group,
                                           const std::string& host);

}  // namespace ddp::detail
