#pragma once

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/state_dict.h"

namespace ddp::detail {

/// A state dict as the dict that is written to a file, and back.
///
/// @throws c10::Error when the value is no dict of tensors.
c10::IValue to_value(const StateDict& tensors);
StateDict to_state_dict(const c10::IValue& value);

/// The state dict in what a file holds: the value itself, or what lies in it
/// under a usual name.
c10::IValue find_state_dict(const c10::IValue& value);

/// The same tensors under the module's names, and the names of one side alone.
struct MatchedState {
  StateDict tensors;
  IncompatibleKeys keys;
};

/// Finds the module's names for the tensors.
/// @throws c10::Error as `load_state_dict`; changes nothing.
MatchedState match(const torch::nn::Module& module,
                   const StateDict& tensors,
                   const LoadStateDictOptions& options = {});

/// Copies tensors that `match` gave into the module.
void copy_into(torch::nn::Module& module, const StateDict& matched);

}  // namespace ddp::detail
