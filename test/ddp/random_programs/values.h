#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "test/ddp/random_programs/learner.h"

namespace ddp::test {

/// A tensor's name and its values; undefined for a gradient that is not there.
using NamedValues = std::vector<std::pair<std::string, at::Tensor>>;

/// Copies of all that a rank has: parameters, gradients, buffers, and what it
/// has noted.
NamedValues values_of(const Learner& learner);

/// Also NaN.
bool is_same(const at::Tensor& left, const at::Tensor& right);

/// The name of the first that differs and both values, "" for none.
std::string first_difference(const NamedValues& expected,
                             const NamedValues& got);

/// The same, of gradients that may be wrong by a part of the largest one, and
/// of buffers.
std::string first_far_off(const NamedValues& expected, const NamedValues& got);

/// By rank: what is expected to be equal on all ranks and is not.
std::string first_parting(const std::vector<NamedValues>& expected,
                          const std::vector<NamedValues>& got);

}  // namespace ddp::test
