#pragma once

#include <set>
#include <string>
#include <vector>

#include <torch/ordered_dict.h>

#include "ddp/job/named_parameter.h"
#include "ddp/job/state_sync.h"

namespace ddp::detail {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

/// The defined tensors of `tensors`, but for those names. One that is
/// registered twice (shared weights) appears once, by its first name left.
std::vector<NamedParameter> unique(const NamedTensors& tensors,
                                   const std::set<std::string>& ignored = {});

/// Throws a c10::Error for the first name that is of neither a parameter nor a
/// buffer, with the one that was probably meant.
void check_ignored(const std::set<std::string>& names,
                   const NamedTensors& parameters,
                   const NamedTensors& buffers);

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& named);

/// What must be equal on all ranks, for `verify_across_ranks`.
std::vector<TensorSpec> describe_all(
    const std::vector<NamedParameter>& parameters,
    const std::vector<NamedParameter>& buffers);

}  // namespace ddp::detail
