#include "ddp/detail/activations/draw_watch.h"

#include <algorithm>
#include <memory>

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

std::unique_ptr<at::ObserverContext> ignore_start(const at::RecordFunction&) {
  return nullptr;
}

void count_draw(const at::RecordFunction& call, at::ObserverContext*) {
  const auto name = call.operator_name();
  const auto schema =
      name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  if (schema && schema->hasTag(at::Tag::nondeterministic_seeded) &&
      std::any_of(call.outputs().begin(), call.outputs().end(), is_on_cpu)) {
    ++draws_on_cpu;
  }
}

}  // namespace

DrawWatch::DrawWatch()
    : before_(draws_on_cpu),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&ignore_start, &count_draw)
              .needsOutputs(true)
              .scopes({at::RecordScope::FUNCTION}))) {}

DrawWatch::~DrawWatch() {
  at::removeCallback(handle_);
}

int64_t DrawWatch::count() const {
  return draws_on_cpu - before_;
}

}  // namespace ddp::detail
