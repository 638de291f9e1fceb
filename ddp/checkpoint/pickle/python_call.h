#pragma once

#include <vector>

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/pickle/nesting.h"

namespace ddp::detail {

/// What a pickle's call of a function or class gives. Only those that tensors,
/// dicts and scalars are made with are known: Python's own, PyTorch's and
/// numpy's. Of any other the result is the function itself, which stands for
/// whatever it returns.
///
/// @param nesting  for the containers that the call fills.
/// @throws c10::Error when the arguments cannot be the function's.
c10::IValue call_python(const c10::IValue& function,
                        const std::vector<c10::IValue>& arguments,
                        Nesting& nesting);

/// What a pickle's BUILD does to an object: a dict's attributes (a state dict's
/// `_metadata`) are dropped, and so is all of a `python_object` but the byte
/// order of numpy's dtypes.
///
/// @throws c10::Error for any other value, which has no state.
void set_state(const c10::IValue& object, const c10::IValue& state);

}  // namespace ddp::detail
