#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <set>
#include <string>

#include "test/ddp/random_programs/learner.h"

namespace ddp::test {

/// A tensor's name and its values; undefined for a missing gradient.
using NamedValues = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns copies of the compared tensors of a rank: parameters, gradients,
/// buffers and notes.
NamedValues values_of(const Learner& learner, const Compared& compared);

/// Returns whether dtypes, sizes and values are equal. NaN equals NaN.
bool is_same(const at::Tensor& left, const at::Tensor& right);

/// Returns the name of the first tensor that differs, with both values; "" if
/// all are equal.
std::string first_difference(const NamedValues& expected,
                             const NamedValues& got);

/// As first_difference(), but an element of a gradient may differ by
/// `tolerance`, and only gradients and buffers are compared.
std::string first_far_off(const NamedValues& expected,
                          const NamedValues& got,
                          double tolerance);

/// Returns whether the optimizers of two ranks, SGD or Adam, have the same
/// state for a parameter.
bool has_same_state(const Learner& left,
                    const Learner& right,
                    const std::string& parameter);

/// Returns the first tensor that differs between ranks although it is expected
/// to be equal; "" if there is none.
/// @param apart  names of parameters that may differ between ranks, because
///   their optimizers have different states there. Rounding may make them
///   equal.
std::string first_parting(const std::vector<NamedValues>& expected,
                          const std::vector<NamedValues>& got,
                          const std::set<std::string>& apart);

}  // namespace ddp::test
