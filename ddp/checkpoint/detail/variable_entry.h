#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include <ATen/core/Tensor.h>

#include "ddp/checkpoint/detail/checkpoint_entry.h"

namespace ddp::detail {

/// A variable of the program; must outlive the checkpoint.
using CheckpointVariable =
    std::variant<bool*, int64_t*, double*, std::string*, at::Tensor*>;

/// Creates the entry of a variable.
/// @param name         the entry's name, for errors.
/// @param is_per_rank  saves each rank's value instead of only rank 0's.
std::shared_ptr<CheckpointEntry> entry_of(std::string name,
                                          CheckpointVariable variable,
                                          bool is_per_rank);

}  // namespace ddp::detail
