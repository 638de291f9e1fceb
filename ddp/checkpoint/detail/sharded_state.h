#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "ddp/checkpoint/state/stateful.h"
#include "ddp/checkpoint/state_dict.h"

// Converts the states of a `FullyShardedDataParallel` and of optimizers over
// its leaves: a checkpoint has the states of the plain module and of an
// optimizer over its parameters. In the scope of a `WholeParameters` the
// functions treat the parameters like the parameters of any module.
namespace ddp::detail {

/// Replaces sharded parameters by tensors with their values on rank 0, and by
/// tensors without elements on other ranks. The values stay until rank 0's next
/// reduced backward pass. Collective if there are sharded parameters.
StateDict with_whole_parameters(StateDict tensors);

/// Converts a state dict to a value. Sharded parameters become DeferredTensors
/// that have this rank's part, and cannot be read.
c10::IValue with_own_parts(const StateDict& tensors);

/// Lets the ranks write to the shards of these tensors. Collective if there are
/// sharded parameters.
void begin_loading(const StateDict& mine);
/// Copies a value into a tensor of a module, or this rank's part into the leaf
/// of a sharded parameter.
void load_tensor(const at::Tensor& mine, const at::Tensor& value);

/// Wraps the state of an optimizer: if its parameters are leaves, the file has
/// the state of an optimizer over the whole parameters. The tensors of
/// this state are DeferredTensors, and reading each of them is collective.
std::shared_ptr<Stateful> with_whole_states(std::shared_ptr<Stateful> state,
                                            torch::optim::Optimizer& optimizer);

}  // namespace ddp::detail
