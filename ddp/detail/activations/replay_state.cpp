#include "ddp/detail/activations/replay_state.h"

#include <algorithm>
#include <mutex>
#include <set>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

namespace ddp::detail {
namespace {

thread_local int entered_segments = 0;

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

/// With copies of its own.
void enter(const std::vector<ParameterCastsPtr>& casts,
           std::optional<CastScope>& scope) {
  if (!casts.empty()) {
    scope.emplace(casts);
  }
}

}  // namespace

ReplayState::ReplayState(const std::vector<at::Tensor>& near) {
  std::vector<c10::Device> devices{c10::kCPU};
  for (const auto& tensor : near) {
    if (tensor.defined() && tensor.is_cuda() &&
        std::find(devices.begin(), devices.end(), tensor.device()) ==
            devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  for (const auto device : devices) {
    generators_.push_back({device, generator_state(device)});
  }
  std::set<c10::DeviceType> types;
  for (const auto device : devices) {
    types.insert(device.type());
  }
  for (const auto device_type : types) {
    autocasts_.push_back({device_type,
                          at::autocast::is_autocast_enabled(device_type),
                          at::autocast::get_autocast_dtype(device_type)});
  }
}

ReplayState::Scope::Scope(const ReplayState& state) {
  for (const auto& [device_type, is_enabled, dtype] : state.autocasts_) {
    guards_.push_back(std::make_unique<AutocastGuard>(
        device_type, AutocastOptions().enabled(is_enabled).dtype(dtype)));
  }
  for (const auto& [device, random] : state.generators_) {
    before_.push_back({device, generator_state(device)});
    set_generator_state(device, random);
  }
  enter(state.casts_, casts_);
}

ReplayState::Scope::~Scope() {
  for (const auto& [device, random] : before_) {
    set_generator_state(device, random);
  }
  while (!guards_.empty()) {
    guards_.pop_back();  // the last one first
  }
}

SegmentScope::SegmentScope()
    : caches_casts_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
  enter(CastScope::active(), casts_);
  ++entered_segments;
}

SegmentScope::~SegmentScope() {
  --entered_segments;
  at::autocast::set_autocast_cache_enabled(caches_casts_);
}

bool SegmentScope::is_entered() {
  return entered_segments > 0;
}

}  // namespace ddp::detail
