#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/state_dict.h"

// Converts the states of a `FullyShardedDataParallel` and of optimizers over
// its leaves: a checkpoint has the states of the plain module and of an
// optimizer over its parameters. In the scope of a `WholeParameters` the
// functions treat the parameters like the parameters of any module.
namespace ddp::detail {

/// Returns the value of a module's tensor, or of a leaf, in a checkpoint. For a
/// sharded parameter it is a DeferredTensor that has this rank's part. Reading
/// it is collective: rank 0 gathers the parts.
c10::IValue whole_parameter(const at::Tensor& tensor);
/// As above, for a tensor of an optimizer's state.
/// @param parameter  of the optimizer.
c10::IValue whole_state(const at::Tensor& parameter, const at::Tensor& state);

/// Returns this rank's part of a value of a checkpoint: of a sharded parameter
/// or its optimizer's state a view, perhaps of a copy; else the value itself.
/// @throws c10::Error if a sharded parameter has another shape.
at::Tensor own_part(const at::Tensor& parameter, const at::Tensor& whole);

/// Lets the ranks write to the shards of these tensors. Collective if there are
/// sharded parameters.
void begin_loading(const StateDict& mine);
/// Copies a value into a tensor of a module, or this rank's part into the leaf
/// of a sharded parameter.
void load_tensor(const at::Tensor& mine, const at::Tensor& value);

}  // namespace ddp::detail
