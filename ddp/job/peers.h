#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// The group that was asked for, or, where that is null, all ranks. Null where
/// this rank is alone in it.
c10::intrusive_ptr<c10d::Backend> peers(
    const c10::intrusive_ptr<c10d::Backend>& asked);

/// As `peers`, for a unit that trains something else without the other ranks.
/// @param who  the unit, for the error: "SyncBatchNorm".
/// @throws c10::Error when no group was asked for, `init_process_group` has not
///   been called and WORLD_SIZE says that there are other ranks.
c10::intrusive_ptr<c10d::Backend> known_peers(
    const c10::intrusive_ptr<c10d::Backend>& asked, const char* who);

/// Where a backend takes tensors: `wanted`, or, over NCCL, the GPU of this rank
/// where `wanted` is none or was not connected.
c10::Device device_for(const c10d::Backend& group, c10::Device wanted);

}  // namespace ddp::detail
