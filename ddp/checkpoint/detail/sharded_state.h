#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "ddp/checkpoint/state/stateful.h"
#include "ddp/checkpoint/state_dict.h"

// The states of a `FullyShardedDataParallel` and of optimizers over its leaves
// in a checkpoint: those of the plain module. In the scope of a
// `WholeParameters` its parameters are like those of any module.
namespace ddp::detail {

/// Replaces sharded parameters by tensors with their values on rank 0, and by
/// tensors without elements on other ranks. The values stay until rank 0's next
/// reduced backward pass. Collective if there are sharded parameters.
StateDict with_whole_parameters(StateDict tensors);

/// Lets the ranks write to the shards of these tensors. Collective if there are
/// sharded parameters.
void begin_loading(const StateDict& mine);
/// Copies a value into a tensor of a module, or this rank's part into the leaf
/// of a sharded parameter.
void load_tensor(const at::Tensor& mine, const at::Tensor& value);

/// Wraps the state of an optimizer: if its parameters are leaves, the file has
/// the state of an optimizer over the whole parameters. Its tensors are
/// DeferredTensors then, and reading each is collective.
std::shared_ptr<Stateful> with_whole_states(std::shared_ptr<Stateful> state,
                                            torch::optim::Optimizer& optimizer);

}  // namespace ddp::detail
