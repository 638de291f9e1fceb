#include "ddp/optim/detail/piece_state.h"

#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Type.h>

#include "ddp/tensors/optimizer_fields.h"

namespace ddp::detail {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

/// Visitor that collects the tensors of a state.
struct StateTensors {
  void operator()(const char* /*name*/, int64_t& /*value*/) {}
  void operator()(const char* /*name*/, at::Tensor& tensor, bool /*needed*/) {
    tensors.push_back(&tensor);
  }
  std::vector<at::Tensor*> tensors;
};

/// Returns the tensors of a state, in the same order for each state of one
/// optimizer class; some may be undefined.
std::vector<at::Tensor*> state_tensors(const Optimizer& kind,
                                       OptimizerParamState& state) {
  StateTensors list;
  with_kind(kind, [&](auto of_kind) {
    using Kind = decltype(of_kind);
    visit_state(static_cast<typename Kind::State&>(state),
                static_cast<const typename Kind::Options&>(kind.defaults()),
                list);
  });
  return std::move(list.tensors);
}

}  // namespace

void check_elementwise(const Optimizer& optimizer) {
  using namespace torch::optim;
  TORCH_CHECK(
      dynamic_cast<const SGD*>(&optimizer) != nullptr ||
          dynamic_cast<const Adam*>(&optimizer) != nullptr ||
          dynamic_cast<const AdamW*>(&optimizer) != nullptr ||
          dynamic_cast<const RMSprop*>(&optimizer) != nullptr ||
          dynamic_cast<const Adagrad*>(&optimizer) != nullptr,
      "Expected SGD, Adam, AdamW, RMSprop or Adagrad to split the state "
      "by bucket, which step each element by itself, but the factory "
      "has made ",
      c10::demangle(typeid(optimizer).name()),
      "; split it by ZeroPartition::parameter");
}

void check_state(const ParameterShard& piece,
                 const Optimizer& kind,
                 const OptimizerParamState& whole) {
  if (is_whole(piece)) {
    return;
  }
  const auto state = whole.clone();
  for (const auto* tensor : state_tensors(kind, *state)) {
    TORCH_CHECK(
        !tensor->defined() || tensor->sizes().equals(piece.param.sizes()),
        "Expected a state of shape ",
        piece.param.sizes(),
        " for parameter ",
        piece.index,
        " of its group, but got one of shape ",
        tensor->sizes());
  }
}

std::unique_ptr<OptimizerParamState> cut_state(
    const ParameterShard& piece,
    const Optimizer& kind,
    const OptimizerParamState& whole) {
  auto state = whole.clone();
  if (is_whole(piece)) {
    return state;
  }
  const c10::NoGradGuard no_grad;
  for (auto* tensor : state_tensors(kind, *state)) {
    if (tensor->defined()) {
      *tensor = flat_range(in_layout_of(*tensor, piece.param),
                           piece.first,
                           piece.part.numel())
                    .clone();
    }
  }
  return state;
}

void join_state(const ParameterShard& piece,
                const Optimizer& kind,
                std::unique_ptr<OptimizerParamState> part,
                std::unique_ptr<OptimizerParamState>& whole) {
  if (is_whole(piece)) {
    whole = std::move(part);
    return;
  }
  const c10::NoGradGuard no_grad;
  const auto parts = state_tensors(kind, *part);
  if (!whole) {
    whole = part->clone();
    for (auto* tensor : state_tensors(kind, *whole)) {
      if (tensor->defined()) {
        *tensor = at::empty_like(piece.param, tensor->options());
      }
    }
  }
  const auto tensors = state_tensors(kind, *whole);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->defined() && tensors[i]->defined()) {
      flat_range(*tensors[i], piece.first, piece.part.numel()).copy_(*parts[i]);
    }
  }
}

}  // namespace ddp::detail
