#pragma once

#include <functional>
#include <set>
#include <string>

#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/reduce/buffer_hook.h"

namespace ddp::detail {

/// Returns a function that synchronizes the module's buffers over a group: it
/// calls `hook`, or, without a hook, copies the buffers of rank `source` to all
/// ranks. The list of modules with buffers is fixed by this call; the returned
/// function reads their current buffers, without the ignored ones. Returns an
/// empty function if the module has no buffers.
std::function<void(int source, c10d::Backend& group)> buffer_sync(
    torch::nn::Module& module,
    const std::set<std::string>& ignored,
    BufferHook hook);

}  // namespace ddp::detail
