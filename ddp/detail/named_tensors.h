#pragma once

#include <string>
#include <vector>

#include <torch/ordered_dict.h>

#include "ddp/detail/state_sync.h"
#include "ddp/named_parameter.h"

namespace ddp::detail {

/// The defined tensors of `tensors`. One that is registered twice (shared
/// weights) appears once, by its first name.
std::vector<NamedParameter> unique(
    const torch::OrderedDict<std::string, at::Tensor>& tensors);

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& named);

/// What must be equal on all ranks, for `verify_across_ranks`.
std::vector<TensorSpec> describe_all(
    const std::vector<NamedParameter>& parameters,
    const std::vector<NamedParameter>& buffers);

}  // namespace ddp::detail
