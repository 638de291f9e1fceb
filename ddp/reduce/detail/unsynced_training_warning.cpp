#include "ddp/reduce/detail/unsynced_training_warning.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include "ddp/reduce/detail/step_detector.h"

namespace ddp::detail {

size_t mark_of(const at::Tensor& parameter) {
  constexpr size_t kMarkElements = 16;
  return c10::hash_combine(
      parameter.unsafeGetTensorImpl()->version_counter().current_version(),
      hash_elements(parameter, kMarkElements));
}

void warn_of_local_training() {
  TORCH_WARN(
      "Expected backward passes to be averaged over ranks, but the parameters "
      "of a DistributedDataParallel have changed ",
      UnsyncedTrainingWarning::kSteps,
      " times between passes that were this rank's alone: each rank trains a "
      "model of its own. Call the wrapper's forward, not that of the module "
      "that it wraps; where ranks are to train apart, do it while a "
      "NoSyncGuard lives");
}

bool UnsyncedTrainingWarning::follows(size_t index) {
  if (is_over_) {
    return false;
  }
  if (!index_) {
    index_ = index;
  }
  return *index_ == index;
}

bool UnsyncedTrainingWarning::add(size_t mark) {
  const bool has_changed = mark_ && *mark_ != mark;
  mark_ = mark;
  steps_ += has_changed ? 1 : 0;
  is_over_ = is_over_ || steps_ == kSteps;
  return has_changed && steps_ == kSteps;
}

}  // namespace ddp::detail
