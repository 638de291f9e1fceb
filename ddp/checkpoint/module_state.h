#pragma once

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/state_dict.h"

namespace ddp::detail {

/// Converts a state dict to the dict that is written to a file, and back.
///
/// @throws c10::Error if the value is no dict of tensors.
c10::IValue to_value(const StateDict& tensors);
StateDict to_state_dict(const c10::IValue& value);

/// Returns the state dict in the content of a file: the value itself, or its
/// entry "model", "state_dict" or "model_state_dict", recursively.
c10::IValue find_state_dict(const c10::IValue& value);

/// Tensors under the module's names, and the names that only one side has.
struct MatchedState {
  StateDict tensors;
  IncompatibleKeys keys;
};

/// Maps the names of the tensors to the module's names.
/// @throws c10::Error as `load_state_dict`; changes nothing.
MatchedState match(const torch::nn::Module& module,
                   const StateDict& tensors,
                   const LoadStateDictOptions& options = {});

/// Copies tensors that `match` returned into the module.
void copy_into(torch::nn::Module& module, const StateDict& matched);

}  // namespace ddp::detail
