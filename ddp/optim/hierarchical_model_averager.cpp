#include "ddp/optim/hierarchical_model_averager.h"

#include <algorithm>
#include <utility>

#include "ddp/detail/optim/average_parameters.h"
#include "ddp/detail/peers.h"

namespace ddp {
namespace {

void check_levels(const std::vector<AveragingLevel>& levels) {
  TORCH_CHECK(!levels.empty(),
              "Expected at least one level of HierarchicalModelAverager, but "
              "got none");
  int64_t period = 0;
  int ranks = 1;
  for (const auto& level : levels) {
    TORCH_CHECK(level.period > period,
                "Expected positive periods of HierarchicalModelAverager, each "
                "longer than the one before, but got ",
                level.period,
                " after ",
                period);
    period = level.period;
    const auto group = detail::peers(level.process_group);
    const int size = group ? group->getSize() : 1;
    TORCH_CHECK(size >= ranks,
                "Expected groups of HierarchicalModelAverager that grow with "
                "the period, but got one of ",
                size,
                " ranks after one of ",
                ranks);
    ranks = size;
  }
}

}  // namespace

HierarchicalModelAverager::HierarchicalModelAverager(
    std::vector<AveragingLevel> levels, int64_t warmup_steps)
    : levels_(std::move(levels)), warmup_steps_(warmup_steps) {
  check_levels(levels_);
  TORCH_CHECK(warmup_steps >= 0,
              "Expected warmup_steps of HierarchicalModelAverager not to be "
              "negative, but got ",
              warmup_steps);
}

bool HierarchicalModelAverager::average_parameters(
    const std::vector<at::Tensor>& parameters) {
  const int64_t step = steps_++;
  const auto level = std::find_if(
      levels_.rbegin(), levels_.rend(), [step](const AveragingLevel& each) {
        return step % each.period == 0;
      });
  if (step < warmup_steps_ || level == levels_.rend()) {
    return false;
  }
  if (const auto group = detail::peers(level->process_group)) {
    detail::average_over_ranks(*group, detail::trained_of(parameters));
  }
  return true;
}

void HierarchicalModelAverager::set_steps(int64_t steps) {
  detail::check_steps(steps);
  steps_ = steps;
}

}  // namespace ddp
