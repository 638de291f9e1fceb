#include "ddp/optim/model_averager.h"

#include <algorithm>

#include <c10/core/GradMode.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/state/optimizer_state.h"
#include "ddp/job/join.h"
#include "ddp/job/peers.h"
#include "ddp/job/state_sync.h"
#include "ddp/tensors/ignored_parameters.h"

namespace ddp {
namespace {

// Entries of the state; PyTorch's PostLocalSGDOptimizer has the first.
constexpr const char* kStepEntry = "step";
constexpr const char* kOuterParameters = "outer_parameters";
constexpr const char* kOuterOptimizer = "outer_optimizer";

void check_levels(const std::vector<AveragingLevel>& levels) {
  TORCH_CHECK(!levels.empty(),
              "Expected at least one level of ModelAverager, but got none");
  int64_t period = 0;
  int ranks = 1;
  for (const auto& level : levels) {
    TORCH_CHECK(level.period > period,
                "Expected positive periods of ModelAverager, each longer than "
                "the one before, but got ",
                level.period,
                " after ",
                period);
    period = level.period;
    const auto group =
        detail::known_peers(level.process_group, "ModelAverager");
    const int size = group ? group->getSize() : 1;
    TORCH_CHECK(size >= ranks,
                "Expected groups of ModelAverager that grow with the period, "
                "but got one of ",
                size,
                " ranks after one of ",
                ranks);
    ranks = size;
  }
}

/// Returns the parameters to average.
std::vector<at::Tensor> averaged_of(const std::vector<at::Tensor>& parameters) {
  return detail::shared_of(detail::trained_of(parameters));
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : parameters) {
    copies.push_back(parameter.detach().clone());
  }
  TORCH_CHECK(!copies.empty(),
              "Expected at least one parameter that requires a gradient for "
              "the outer optimizer of ModelAverager, but got none; give the "
              "constructor the model's parameters");
  return copies;
}

}  // namespace

ModelAverager::ModelAverager(ModelAveragerOptions options,
                             const std::vector<at::Tensor>& parameters)
    : options_(std::move(options)) {
  check_levels(options_.levels());
  TORCH_CHECK(options_.warmup_steps() >= 0,
              "Expected warmup_steps of ModelAverager not to be negative, but "
              "got ",
              options_.warmup_steps());
  if (options_.outer()) {
    TORCH_CHECK(options_.warmup_steps() == 0,
                "Expected no warmup_steps beside an outer optimizer, but got ",
                options_.warmup_steps(),
                "; make the ModelAverager after the warm-up");
    averaged_ = averaged_of(parameters);
    outer_ = copies_of(averaged_);
    optimizer_ = std::make_unique<torch::optim::SGD>(outer_, *options_.outer());
  }
}

bool ModelAverager::average_parameters(
    const std::vector<at::Tensor>& parameters) {
  TORCH_CHECK(!has_peers() || !Join::is_running(),
              "Expected no ModelAverager in a Join, because ranks without "
              "inputs would miss its averages, but got one; give all ranks the "
              "same number of inputs");
  const auto& levels = options_.levels();
  const int64_t step = steps_++;
  const int64_t counted = optimizer_           ? step + 1
                          : levels.size() == 1 ? step - options_.warmup_steps()
                                               : step;
  const auto level = std::find_if(
      levels.rbegin(), levels.rend(), [counted](const AveragingLevel& each) {
        return counted % each.period == 0;
      });
  if (step < options_.warmup_steps() || level == levels.rend()) {
    return false;
  }
  const auto averaged = averaged_of(parameters);
  TORCH_CHECK(
      !optimizer_ ||
          std::equal(averaged.begin(),
                     averaged.end(),
                     averaged_.begin(),
                     averaged_.end(),
                     [](const auto& a, const auto& b) { return a.is_same(b); }),
      "Expected the ",
      outer_.size(),
      " parameters that the outer optimizer of ModelAverager was made for, in "
      "the same order, but got ",
      averaged.size(),
      "; give its constructor the parameters that are averaged, for a "
      "PostLocalSGDOptimizer in the order of its groups");
  if (const auto group = detail::peers(level->process_group)) {
    detail::average_over_ranks(*group, averaged);
  }
  if (optimizer_ && level == levels.rbegin()) {
    step_outer();
  }
  return true;
}

void ModelAverager::step_outer() {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < outer_.size(); ++i) {
    outer_[i].mutable_grad() = outer_[i] - averaged_[i];
  }
  optimizer_->step();
  for (size_t i = 0; i < outer_.size(); ++i) {
    outer_[i].mutable_grad().reset();
    averaged_[i].copy_(outer_[i]);
  }
}

void ModelAverager::set_steps(int64_t steps) {
  TORCH_CHECK(
      steps >= 0, "Expected a number of steps from 0 on, but got ", steps);
  steps_ = steps;
}

bool ModelAverager::has_peers() const {
  const auto& levels = options_.levels();
  return std::any_of(
      levels.begin(), levels.end(), [](const AveragingLevel& level) {
        return detail::peers(level.process_group) != nullptr;
      });
}

c10::IValue ModelAverager::state_dict() const {
  auto state = detail::new_dict().toGenericDict();
  state.insert(kStepEntry, steps_);
  if (optimizer_) {
    auto parameters = detail::new_list().toList();
    for (const auto& parameter : outer_) {
      parameters.push_back(parameter);
    }
    state.insert(kOuterParameters, parameters);
    state.insert(kOuterOptimizer, detail::optimizer_to_value(*optimizer_));
  }
  return state;
}

void ModelAverager::check_state_dict(const c10::IValue& state) const {
  const detail::DictReader saved(state, "averager");
  if (!saved.has(kStepEntry)) {
    TORCH_CHECK(!optimizer_,
                "expected the state of an averager with an outer optimizer, "
                "but got none; load the model alone, then make the averager");
    return;
  }
  const int64_t steps = saved.integer(kStepEntry);
  TORCH_CHECK(
      steps >= 0, "expected steps of an averager from 0 on, but got ", steps);
  if (!optimizer_) {
    return;
  }
  const auto outer = saved.list(kOuterParameters);
  TORCH_CHECK(outer.size() == outer_.size(),
              "expected ",
              outer_.size(),
              " outer parameters of an averager, but got ",
              outer.size());
  for (size_t i = 0; i < outer.size(); ++i) {
    TORCH_CHECK(
        outer[i].isTensor() && outer[i].toTensor().sizes() == outer_[i].sizes(),
        "Expected outer parameter ",
        i,
        " of a ModelAverager to have shape ",
        outer_[i].sizes(),
        " in the file, but it has ",
        outer[i].isTensor() ? c10::str(outer[i].toTensor().sizes())
                            : detail::describe(outer[i]),
        "; make the averager over the parameters that it was saved with");
  }
  detail::check_optimizer(*optimizer_, saved.get(kOuterOptimizer));
}

void ModelAverager::load_state_dict(const c10::IValue& state) {
  check_state_dict(state);
  const detail::DictReader saved(state, "averager");
  if (!saved.has(kStepEntry)) {
    TORCH_WARN(
        "Expected an averager's steps in the file, but got none; it begins "
        "with step 0");
    steps_ = 0;
    return;
  }
  if (optimizer_) {
    const c10::NoGradGuard no_grad;
    detail::load_optimizer(*optimizer_, saved.get(kOuterOptimizer));
    const auto outer = saved.list(kOuterParameters);
    for (size_t i = 0; i < outer.size(); ++i) {
      outer_[i].copy_(outer[i].toTensor());
    }
  }
  steps_ = saved.integer(kStepEntry);
}

}  // namespace ddp
