#include "ddp/nn/detail/replay_state.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>

#include "ddp/tensors/generator_states.h"

namespace ddp::detail {
namespace {

thread_local int64_t draws_on_this_thread = 0;

bool is_on_cpu(const c10::IValue& output) {
  return output.isTensor() && output.toTensor().defined() &&
         output.toTensor().is_cpu();
}

/// Returns true for arguments that disable dropout.
bool turns_draws_off(const std::string& argument, const c10::IValue& value) {
  return ((argument == "train" || argument == "training") && value.isBool() &&
          !value.toBool()) ||
         (argument == "dropout_p" && value.isDouble() && value.toDouble() == 0);
}

bool may_draw(const at::RecordFunction& call) {
  const auto name = call.operator_name();
  const auto schema =
      name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  // The parts of a composite operator are observed themselves.
  if (!schema || !schema->hasTag(at::Tag::nondeterministic_seeded) ||
      schema->hasKernelForDispatchKey(
          c10::DispatchKey::CompositeImplicitAutograd)) {
    return false;
  }
  const auto& arguments = schema->schema().arguments();
  const auto values = call.inputs();
  for (size_t i = 0; i < std::min(arguments.size(), values.size()); ++i) {
    if (turns_draws_off(arguments[i].name(), values[i])) {
      return false;
    }
  }
  return true;
}

struct Mark : at::ObserverContext {};

/// Inputs are only available at the start of a call, outputs only at its end.
std::unique_ptr<at::ObserverContext> mark_draw(const at::RecordFunction& call) {
  return may_draw(call) ? std::make_unique<Mark>() : nullptr;
}

void count_draw(const at::RecordFunction& call, at::ObserverContext* mark) {
  if (mark != nullptr &&
      std::any_of(call.outputs().begin(), call.outputs().end(), is_on_cpu)) {
    ++draws_on_this_thread;
  }
}

/// Counts, during its lifetime, the operators on this thread that draw random
/// numbers on the CPU: operators that LibTorch marks as
/// `nondeterministic_seeded`, except composite operators and calls with
/// arguments that disable dropout.
class DrawCounter {
 public:
  DrawCounter()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&mark_draw, &count_draw)
                .needsInputs(true)
                .needsOutputs(true)
                .scopes({at::RecordScope::FUNCTION}))) {}
  ~DrawCounter() { at::removeCallback(handle_); }
  DrawCounter(const DrawCounter&) = delete;
  DrawCounter& operator=(const DrawCounter&) = delete;

  int64_t count() const { return draws_on_this_thread - before_; }

 private:
  int64_t before_ = draws_on_this_thread;
  at::CallbackHandle handle_;
};

AutocastOptions current_autocast(c10::DeviceType device_type) {
  return AutocastOptions()
      .enabled(at::autocast::is_autocast_enabled(device_type))
      .dtype(at::autocast::get_autocast_dtype(device_type))
      .cache_enabled(false);
}

std::recursive_mutex& cpu_generator_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace

ReplayState::ReplayState(const std::vector<at::Tensor>& near)
    : cpu_autocast_(current_autocast(c10::kCPU)),
      cuda_autocast_(current_autocast(c10::kCUDA)) {
  generators_.emplace_back(c10::kCPU, generator_state(c10::kCPU));
  for (const auto& tensor : near) {
    const auto is_new = [&](const auto& known) {
      return known.first != tensor.device();
    };
    if (tensor.is_cuda() &&
        std::all_of(generators_.begin(), generators_.end(), is_new)) {
      generators_.emplace_back(tensor.device(),
                               generator_state(tensor.device()));
    }
  }
}

std::vector<at::Tensor> ReplayState::run_first(const Computation& compute) {
  const AutocastGuard on_cpu(c10::kCPU, cpu_autocast_);
  const AutocastGuard on_gpu(c10::kCUDA, cuda_autocast_);
  const DrawCounter draws;
  auto results = compute();
  if (draws.count() > 0) {
    cpu_after_ = generator_state(c10::kCPU);
  }
  const auto is_unused = [this](const auto& generator) {
    const auto& [device, state] = generator;
    return device.is_cpu() ? !draws_on_cpu()
                           : state.equal(generator_state(device));
  };
  generators_.erase(
      std::remove_if(generators_.begin(), generators_.end(), is_unused),
      generators_.end());
  return results;
}

std::vector<at::Tensor> ReplayState::run_again(
    const Computation& compute) const {
  const AutocastGuard on_cpu(c10::kCPU, cpu_autocast_);
  const AutocastGuard on_gpu(c10::kCUDA, cuda_autocast_);
  std::unique_lock<std::recursive_mutex> lock(cpu_generator_mutex(),
                                              std::defer_lock);
  if (draws_on_cpu()) {
    lock.lock();
  }
  std::vector<c10::Device> devices;
  for (const auto& [device, state] : generators_) {
    devices.push_back(device);
  }
  const GeneratorGuard restore(devices);
  for (const auto& [device, state] : generators_) {
    set_generator_state(device, state);
  }
  auto results = compute();
  TORCH_CHECK(
      !draws_on_cpu() || cpu_after_.equal(generator_state(c10::kCPU)),
      "Expected no other thread to draw from the CPU's default generator while "
      "a checkpointed function draws from it, in the forward or in the "
      "backward pass, but one has drawn, so the backward pass could not draw "
      "the same numbers again; give that thread, a data loader's for instance, "
      "a generator of its own, or draw outside of the function and give the "
      "numbers as an input");
  return results;
}

}  // namespace ddp::detail
