#include "samples/support/profiler.h"

#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>

namespace samples {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using Kind = TraceEvent::Kind;

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

std::optional<Kind> kind_of(const kineto::KinetoEvent& event,
                            const torch::Device& device) {
  const auto type = static_cast<libkineto::ActivityType>(event.activityType());
  const auto name = event.name();
  if (device.is_cuda() && type == libkineto::ActivityType::CONCURRENT_KERNEL) {
    return starts_with(name, "nccl") ? Kind::communication : Kind::compute;
  }
  if (starts_with(name, "gloo:all_reduce")) {
    return Kind::communication;
  }
  if (device.is_cpu() && starts_with(name, "autograd::engine::evaluate")) {
    return Kind::compute;
  }
  if (type == libkineto::ActivityType::USER_ANNOTATION) {
    return Kind::phase;
  }
  return std::nullopt;
}

int64_t elements_of(const kineto::KinetoEvent& event) {
  int64_t sum = 0;
  for (const auto& shape : event.shapes()) {
    int64_t product = 1;
    for (const int64_t size : shape) {
      product *= size;
    }
    sum += shape.empty() ? 0 : product;
  }
  return sum;
}

std::set<ActivityType> activities(const torch::Device& device) {
  return device.is_cuda()
             ? std::set<ActivityType>{ActivityType::CPU, ActivityType::CUDA}
             : std::set<ActivityType>{ActivityType::CPU};
}

}  // namespace

void silence_profiler() {
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
}

Profiler::Profiler(torch::Device device) : device_(device) {
  const ProfilerConfig config(ProfilerState::KINETO,
                              /*report_input_shapes=*/true);
  kineto::prepareProfiler(config, activities(device_));
  kineto::enableProfiler(config, activities(device_));
}

Profiler::~Profiler() {
  if (!result_) {
    kineto::disableProfiler();
  }
}

std::vector<TraceEvent> Profiler::stop() {
  result_ = kineto::disableProfiler();
  std::vector<TraceEvent> events;
  for (const auto& event : result_->events()) {
    if (const auto kind = kind_of(event, device_)) {
      events.push_back({*kind,
                        event.name(),
                        {static_cast<int64_t>(event.startNs()),
                         static_cast<int64_t>(event.endNs())},
                        elements_of(event)});
    }
  }
  return events;
}

void Profiler::save(const std::string& file) {
  result_->save(file);
}

}  // namespace samples
