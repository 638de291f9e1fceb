#pragma once

#include "ddp/exchanges/exchange.h"

namespace ddp::detail {

/// Checks that no `StepInBackward` is inside an exchange that changes the
/// gradients after its inner exchange: the optimizer would step with unfinished
/// gradients.
/// @param who  name of the outer exchange for the error.
/// @throws c10::Error if there is one.
void refuse_step_inside(const Exchange& inner, const char* who);

}  // namespace ddp::detail
