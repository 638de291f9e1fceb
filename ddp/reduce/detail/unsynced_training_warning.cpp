#include "ddp/reduce/detail/unsynced_training_warning.h"

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

namespace ddp::detail {

size_t mark_of(const at::Tensor& parameter) {
  constexpr size_t kPlaces = 16;
  const auto* impl = parameter.unsafeGetTensorImpl();
  size_t mark = impl->version_counter().current_version();
  if (parameter.is_cpu() && parameter.is_non_overlapping_and_dense()) {
    const size_t numel = parameter.numel();
    const auto* memory = static_cast<const char*>(parameter.const_data_ptr());
    for (size_t i = 0; i < std::min(numel, kPlaces); ++i) {
      uint64_t bits = 0;
      const size_t place = numel * i / std::min(numel, kPlaces);
      std::memcpy(&bits,
                  memory + place * parameter.element_size(),
                  std::min<size_t>(sizeof(bits), parameter.element_size()));
      mark = c10::hash_combine(mark, bits);
    }
  }
  return mark;
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
