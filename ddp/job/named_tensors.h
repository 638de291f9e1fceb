#pragma once

#include <set>
#include <string>
#include <vector>

#include <torch/ordered_dict.h>

#include "ddp/job/named_parameter.h"
#include "ddp/job/state_sync.h"

namespace ddp::detail {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

/// Returns the defined tensors without the ignored names. A tensor with several
/// names (shared weights) appears once, with its first name that is not
/// ignored.
std::vector<NamedParameter> unique(const NamedTensors& tensors,
                                   const std::set<std::string>& ignored = {});

/// Checks that each name belongs to a parameter or a buffer.
/// @throws c10::Error for the first unknown name; suggests a similar name.
void check_ignored(const std::set<std::string>& names,
                   const NamedTensors& parameters,
                   const NamedTensors& buffers);

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& named);

/// Describes the tensors for `verify_across_ranks`.
std::vector<TensorSpec> describe_all(
    const std::vector<NamedParameter>& parameters,
    const std::vector<NamedParameter>& buffers);

}  // namespace ddp::detail
