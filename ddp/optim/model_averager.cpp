#include "ddp/optim/model_averager.h"

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/job/join.h"
#include "ddp/job/peers.h"
#include "ddp/job/state_sync.h"
#include "ddp/tensors/ignored_parameters.h"
#include "ddp/tensors/shard_storage.h"

namespace ddp {
namespace {

constexpr const char* kStepEntry = "step";

}  // namespace

ModelAverager::ModelAverager(ModelAveragerOptions options)
    : options_(std::move(options)) {
  TORCH_CHECK(options_.period() > 0,
              "Expected a positive period of ModelAverager, but got ",
              options_.period());
  TORCH_CHECK(options_.warmup_steps() >= 0,
              "Expected warmup_steps of ModelAverager not to be negative, but "
              "got ",
              options_.warmup_steps());
  detail::known_peers(options_.process_group(), "ModelAverager");
}

bool ModelAverager::average_parameters(
    const std::vector<at::Tensor>& parameters) {
  const auto group = detail::peers(options_.process_group());
  TORCH_CHECK(!group || !Join::is_running(),
              "Expected no ModelAverager in a Join, because ranks without "
              "inputs would miss its averages, but got one; give all ranks the "
              "same number of inputs");
  for (const auto& parameter : parameters) {
    detail::refuse_shard(parameter, "ModelAverager");
  }
  const int64_t since_warmup = steps_++ - options_.warmup_steps();
  if (since_warmup < 0 || since_warmup % options_.period() != 0) {
    return false;
  }
  if (group) {
    detail::average_over_ranks(
        *group, detail::shared_of(detail::trained_of(parameters)));
  }
  return true;
}

c10::IValue ModelAverager::state_dict() const {
  auto state = detail::new_dict().toGenericDict();
  state.insert(kStepEntry, steps_);
  return state;
}

void ModelAverager::check_state_dict(const c10::IValue& state) const {
  const int64_t steps =
      detail::DictReader(state, "averager").integer(kStepEntry);
  TORCH_CHECK(
      steps >= 0, "expected steps of an averager from 0 on, but got ", steps);
}

void ModelAverager::load_state_dict(const c10::IValue& state) {
  check_state_dict(state);
  steps_ = detail::DictReader(state, "averager").integer(kStepEntry);
}

}  // namespace ddp
