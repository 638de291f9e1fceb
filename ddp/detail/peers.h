#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// The group that was asked for, or, where that is null, all ranks. Null where
/// this rank is alone in it.
c10::intrusive_ptr<c10d::Backend> peers(
    const c10::intrusive_ptr<c10d::Backend>& asked);

/// Where a backend takes tensors: NCCL on a GPU alone, the rank's where
/// `wanted` is none; any other one on `wanted`.
c10::Device device_for(const c10d::Backend& group, c10::Device wanted);

}  // namespace ddp::detail
