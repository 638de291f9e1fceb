#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/shared_memory/shared_memory.h"

namespace ddp::detail {

/// The memory of one host, and where the ranks of a group are.
struct HostMemory {
  std::shared_ptr<SharedMemory> memory;  ///< null: Gloo is used instead
  /// Ranks of the group on each host, ascending; hosts in the order of their
  /// first ranks.
  std::vector<std::vector<int>> hosts;
  size_t own_host = 0;  ///< index of this rank's host
  int own_rank = 0;     ///< index of this rank on its host, as in `memory`
};

/// Returns a text that only processes of this kernel and network namespace
/// have, empty if the kernel does not say.
std::string host_name();

/// Maps one memory on all ranks of each host of a group; on all ranks null if a
/// rank's host is empty or if each rank is alone on its host. Rank 0 warns if
/// the memory of a host could not be shared; then there is none on any host.
/// The descriptor of a host's memory comes over a Unix socket from a process of
/// the same user.
///
/// Collective over the group, which takes CPU tensors.
/// @param host  ranks of equal hosts share memory: `host_name()`, or empty if
///   this rank does not want it.
/// @throws the exceptions of the group's collectives.
HostMemory share_memory(c10d::Backend& group, const std::string& host);

}  // namespace ddp::detail
