#include "ddp/detail/reducer/bucket.h"

#include <utility>

namespace ddp::detail {

Bucket::Bucket(std::vector<Slot*> members)
    : members_(std::move(members)), pending_(members_.size()) {
  parameters_.reserve(members_.size());
  for (const Slot* slot : members_) {
    parameters_.push_back(slot->parameter);
  }
}

void Bucket::reset() {
  pending_ = members_.size();
}

}  // namespace ddp::detail
