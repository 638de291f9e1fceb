#include "ddp/exchanges/detail/refuse_step_inside.h"

#include "ddp/exchanges/step_in_backward.h"

namespace ddp::detail {

void refuse_step_inside(const Exchange& inner, const char* who) {
  TORCH_CHECK(dynamic_cast<const StepInBackward*>(&inner) == nullptr,
              "Expected a StepInBackward around the ",
              who,
              ", but got it inside, where the gradients are not finished");
  for (const auto* each : inner.inner_exchanges()) {
    refuse_step_inside(*each, who);
  }
}

}  // namespace ddp::detail
