#include "dp/detail/parameter_server/sent_copies.h"

#include <algorithm>
#include <set>

namespace dp::detail {
namespace {

/// That may be on their way at once.
constexpr size_t kCopies = 2;

}  // namespace

bool SentCopies::has_room() const {
  std::set<const void*> copies;
  for (const auto& copy : sent_) {
    if (copy.defined()) {
      copies.insert(copy.const_data_ptr());
    }
  }
  return copies.size() < kCopies;
}

bool SentCopies::is_being_sent(const at::Tensor& copy) const {
  return std::any_of(sent_.begin(), sent_.end(), [&](const at::Tensor& sent) {
    return sent.is_same(copy);
  });
}

at::Tensor SentCopies::send_whole(size_t worker, const at::Tensor& parameters) {
  if (!is_current_) {
    if (newest_.defined() && !is_being_sent(newest_)) {
      newest_.copy_(parameters);
    } else {
      newest_ = parameters.clone();
    }
    is_current_ = true;
  }
  send(worker, newest_);
  return newest_;
}

}  // namespace dp::detail
