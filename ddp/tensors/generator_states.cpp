#include "ddp/tensors/generator_states.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>

namespace ddp::detail {
namespace {

at::Tensor generator_state(c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

GeneratorStates::GeneratorStates(const std::vector<c10::Device>& devices) {
  for (const auto device : devices) {
    generators_.push_back({device, generator_state(device)});
  }
}

void GeneratorStates::restore() const {
  for (const auto& [device, state] : generators_) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(state);
  }
}

void GeneratorStates::forget_unchanged() {
  generators_.erase(
      std::remove_if(generators_.begin(), generators_.end(), &is_current),
      generators_.end());
}

void GeneratorStates::forget(c10::Device device) {
  generators_.erase(std::remove_if(generators_.begin(),
                                   generators_.end(),
                                   [device](const Generator& generator) {
                                     return generator.device == device;
                                   }),
                    generators_.end());
}

bool GeneratorStates::are_current() const {
  return std::all_of(generators_.begin(), generators_.end(), &is_current);
}

bool GeneratorStates::is_current(const Generator& generator) {
  return generator.state.equal(generator_state(generator.device));
}

std::vector<c10::Device> GeneratorStates::devices() const {
  std::vector<c10::Device> devices;
  for (const auto& generator : generators_) {
    devices.push_back(generator.device);
  }
  return devices;
}

}  // namespace ddp::detail
