#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "ddp/checkpoint/pickle/nesting.h"

namespace ddp::detail {

/// Returns the result of a function or class that a pickle calls. Only the
/// functions that create tensors, dicts and scalars are known: Python's own,
/// PyTorch's and numpy's. For any other function the result is the function
/// itself, as a placeholder of its result.
///
/// @param nesting  registers the containers that the call fills.
/// @throws c10::Error if the arguments do not match the function.
c10::IValue call_python(const c10::IValue& function,
                        c10::ArrayRef<c10::IValue> arguments,
                        Nesting& nesting);

/// Executes a pickle's BUILD on an object. Drops the attributes of a dict (a
/// state dict's `_metadata`), and the state of a `python_object` except the
/// byte order of numpy's dtypes.
///
/// @throws c10::Error for any other value, which has no state.
void set_state(const c10::IValue& object, const c10::IValue& state);

}  // namespace ddp::detail
