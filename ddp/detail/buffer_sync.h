#pragma once

#include <functional>
#include <set>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/nn/module.h>

namespace ddp::detail {

/// Copies a rank's buffers to all: of every module those that it has when it is
/// called, but for the ignored. Empty where the module has none.
std::function<void(int source, c10d::Backend& group)> buffer_broadcast(
    torch::nn::Module& module, const std::set<std::string>& ignored);

}  // namespace ddp::detail
