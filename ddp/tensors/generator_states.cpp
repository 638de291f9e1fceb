#include "ddp/tensors/generator_states.h"

#include <mutex>

#include <ATen/Context.h>

namespace ddp::detail {

at::Tensor generator_state(c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(c10::Device device, const at::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

GeneratorGuard::GeneratorGuard(const std::vector<c10::Device>& devices) {
  for (const auto device : devices) {
    states_.emplace_back(device, generator_state(device));
  }
}

GeneratorGuard::~GeneratorGuard() {
  for (const auto& [device, state] : states_) {
    set_generator_state(device, state);
  }
}

}  // namespace ddp::detail
