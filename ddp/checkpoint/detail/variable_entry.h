#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include <ATen/core/Tensor.h>

#include "ddp/checkpoint/detail/checkpoint_entry.h"

namespace ddp::detail {

/// A variable of the program, which outlives the checkpoint.
using CheckpointVariable =
    std::variant<bool*, int64_t*, double*, std::string*, at::Tensor*>;

/// @param name  the entry's, for errors.
/// @param is_per_rank  each rank's value is saved, not rank 0's alone.
std::shared_ptr<CheckpointEntry> entry_of(std::string name,
                                          CheckpointVariable variable,
                                          bool is_per_rank);

}  // namespace ddp::detail
