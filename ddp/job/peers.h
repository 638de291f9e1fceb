#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Returns `asked`, or the group of all ranks if `asked` is null; null if there
/// is no group.
c10::intrusive_ptr<c10d::Backend> group_or_all(
    const c10::intrusive_ptr<c10d::Backend>& asked);

/// Like `group_or_all`, but null for a group of one rank, too.
c10::intrusive_ptr<c10d::Backend> peers(
    const c10::intrusive_ptr<c10d::Backend>& asked);

/// Like `peers`, for objects that would silently train without the other ranks.
/// @param object  name of the object for the error: "SyncBatchNorm".
/// @throws c10::Error if `asked` is null, `init_process_group` has not been
///   called and WORLD_SIZE is greater than 1.
c10::intrusive_ptr<c10d::Backend> known_peers(
    const c10::intrusive_ptr<c10d::Backend>& asked, const char* object);

/// Returns `asked`.
/// @throws c10::Error if it is null.
c10::intrusive_ptr<c10d::Backend> required_group(
    c10::intrusive_ptr<c10d::Backend> asked);

/// Returns the device for tensors of a collective: `wanted` if the backend
/// supports it, else the GPU of this rank (NCCL, if `wanted` is no GPU or a GPU
/// that was not connected).
c10::Device device_for(const c10d::Backend& group, c10::Device wanted);

}  // namespace ddp::detail
