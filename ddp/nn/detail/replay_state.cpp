#include "ddp/nn/detail/replay_state.h"

#include <algorithm>
#include <mutex>
#include <set>

#include <ATen/autocast_mode.h>

namespace ddp::detail {
namespace {

thread_local int entered_segments = 0;

std::recursive_mutex& cpu_generator_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// Returns the CPU and the GPUs of these tensors.
std::vector<c10::Device> devices_near(const std::vector<at::Tensor>& near) {
  std::vector<c10::Device> devices{c10::kCPU};
  for (const auto& tensor : near) {
    if (tensor.defined() && tensor.is_cuda() &&
        std::find(devices.begin(), devices.end(), tensor.device()) ==
            devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

}  // namespace

ReplayState::ReplayState(const std::vector<at::Tensor>& near)
    : generators_(devices_near(near)) {
  std::set<c10::DeviceType> types;
  for (const auto device : generators_.devices()) {
    types.insert(device.type());
  }
  for (const auto device_type : types) {
    autocasts_.push_back({device_type,
                          at::autocast::is_autocast_enabled(device_type),
                          at::autocast::get_autocast_dtype(device_type)});
  }
}

void ReplayState::forget_unused_generators(bool has_drawn_on_cpu) {
  generators_.forget_unchanged();
  if (!has_drawn_on_cpu) {
    generators_.forget(c10::kCPU);
  }
  const auto used = generators_.devices();
  if (std::find(used.begin(), used.end(), c10::Device(c10::kCPU)) !=
      used.end()) {
    cpu_after_.emplace(std::vector<c10::Device>{c10::kCPU});
  }
}

ReplayState::Scope::Scope(const ReplayState& state) {
  for (const auto& [device_type, is_enabled, dtype] : state.autocasts_) {
    guards_.push_back(std::make_unique<AutocastGuard>(
        device_type, AutocastOptions().enabled(is_enabled).dtype(dtype)));
  }
}

ReplayState::Scope::~Scope() {
  while (!guards_.empty()) {
    guards_.pop_back();  // in reverse order
  }
}

ReplayState::Draws::Draws(const ReplayState& state)
    : cpu_(state.draws_on_cpu()
               ? std::unique_lock<std::recursive_mutex>(cpu_generator_mutex())
               : std::unique_lock<std::recursive_mutex>()),
      before_(state.generators_.devices()) {
  state.generators_.restore();
}

ReplayState::Draws::~Draws() {
  before_.restore();
}

SegmentScope::SegmentScope()
    : caches_casts_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
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
