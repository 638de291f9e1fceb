#include "ddp/nn/detail/draw_counter.h"

#include <algorithm>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

namespace ddp::detail {
namespace {

thread_local int64_t draws_on_cpu = 0;

bool is_on_cpu(const c10::IValue& output) {
  return output.isTensor() && output.toTensor().defined() &&
         output.toTensor().is_cpu();
}

/// Returns true if the argument disables dropout: "train" or "training" in
/// evaluation mode, or a dropout of 0. (Attention on the CPU is marked as
/// drawing, but supports only a dropout of 0.)
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
    ++draws_on_cpu;
  }
}

}  // namespace

DrawCounter::DrawCounter()
    : before_(draws_on_cpu),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&mark_draw, &count_draw)
              .needsInputs(true)
              .needsOutputs(true)
              .scopes({at::RecordScope::FUNCTION}))) {}

DrawCounter::~DrawCounter() {
  at::removeCallback(handle_);
}

int64_t DrawCounter::count() const {
  return draws_on_cpu - before_;
}

}  // namespace ddp::detail
