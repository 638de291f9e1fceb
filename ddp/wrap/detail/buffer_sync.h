#pragma once

#include <functional>
#include <set>
#include <string>

#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/reduce/buffer_hook.h"

namespace ddp::detail {

/// Has `hook` change the module's buffers, or, without one, copies those of a
/// rank to all. The buffers are those that each of its modules has when this is
/// called, but for the ignored. Empty where the module has none.
std::function<void(int source, c10d::Backend& group)> buffer_sync(
    torch::nn::Module& module,
    const std::set<std::string>& ignored,
    BufferHook hook);

}  // namespace ddp::detail
