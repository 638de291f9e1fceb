#pragma once

#include <cstdint>
#include <vector>

#include "ddp/detail/reducer/bucket_plan.h"

namespace dp::detail {

/// Bytes that are worth a copy between devices: far more than it costs to begin
/// one, little beside the memory of a device.
constexpr int64_t kBytesSentTogether = 16 << 20;

/// Pure: groups tensors of one dtype and device, in `order`. A group is closed
/// once it has reached `cap_bytes`. A tensor of `kBytesSentTogether` bytes is
/// alone, since to send it together with others takes memory for all of them.
std::vector<std::vector<size_t>> group_by_size(
    std::vector<ddp::detail::GradientSpec> tensors,
    const std::vector<size_t>& order,
    int64_t cap_bytes);

}  // namespace dp::detail
