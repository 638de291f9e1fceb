#include "ddp/checkpoint/detail/averager_state.h"

#include <memory>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>

#include "ddp/checkpoint/optimizer_state.h"
#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

constexpr const char* kStep = "step";
constexpr const char* kOuterParameters = "outer_parameters";
constexpr const char* kOuterOptimizer = "outer_optimizer";

std::vector<at::Tensor> read_outer(const ModelAverager& averager,
                                   const DictReader& saved) {
  const auto values = saved.list(kOuterParameters);
  const auto& mine = averager.outer_parameters();
  TORCH_CHECK(values.size() == mine.size(),
              "expected ",
              mine.size(),
              " outer parameters of an averager, but got ",
              values.size());
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < mine.size(); ++i) {
    TORCH_CHECK(
        values[i].isTensor() && values[i].toTensor().sizes() == mine[i].sizes(),
        "expected a tensor of sizes ",
        mine[i].sizes(),
        " as outer parameter ",
        i,
        " of an averager, but got ",
        values[i].isTensor() ? c10::str(values[i].toTensor().sizes())
                             : describe(values[i]));
    tensors.push_back(values[i].toTensor());
  }
  return tensors;
}

}  // namespace

void insert_averager(const ModelAverager& averager,
                     c10::Dict<c10::IValue, c10::IValue>& dict) {
  dict.insert(kStep, averager.steps());
  if (const auto* optimizer = averager.outer_optimizer()) {
    auto parameters = new_list().toList();
    for (const auto& parameter : averager.outer_parameters()) {
      parameters.push_back(parameter);
    }
    dict.insert(kOuterParameters, parameters);
    dict.insert(kOuterOptimizer, optimizer_to_value(*optimizer));
  }
}

std::function<void()> read_averager(ModelAverager& averager,
                                    const c10::IValue& saved) {
  const DictReader dict(saved, "averager");
  if (!dict.has(kStep)) {
    TORCH_CHECK(
        averager.outer_optimizer() == nullptr,
        "expected the state of an averager with an outer optimizer, but "
        "got none; load the model alone, then make the averager");
    TORCH_WARN(
        "Expected an averager's steps in the file, but got none; it begins "
        "with step 0");
    return [&averager] { averager.set_steps(0); };
  }
  const int64_t steps = dict.integer(kStep);
  TORCH_CHECK(
      steps >= 0, "expected steps of an averager from 0 on, but got ", steps);
  if (averager.outer_optimizer() == nullptr) {
    return [&averager, steps] { averager.set_steps(steps); };
  }
  auto outer = read_outer(averager, dict);
  auto update = std::make_shared<OptimizerUpdate>(
      read_optimizer(*averager.outer_optimizer(), dict.get(kOuterOptimizer)));
  return [&averager, steps, outer = std::move(outer), update] {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < outer.size(); ++i) {
      at::Tensor(averager.outer_parameters()[i]).copy_(outer[i]);
    }
    apply(std::move(*update), *averager.outer_optimizer());
    averager.set_steps(steps);
  };
}

}  // namespace ddp::detail
