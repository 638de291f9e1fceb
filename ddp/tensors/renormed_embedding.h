#pragma once

#include <set>
#include <string>

#include <torch/nn/module.h>

namespace ddp::detail {

/// Returns the name of the weight of the first Embedding or EmbeddingBag with
/// max_norm, or "". The forward of this layer changes the rows that it looks
/// up.
/// @param ignored  names of weights that do not count.
std::string renormed_embedding(const torch::nn::Module& module,
                               const std::set<std::string>& ignored = {});

}  // namespace ddp::detail
