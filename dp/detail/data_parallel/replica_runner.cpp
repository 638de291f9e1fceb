#include "dp/detail/data_parallel/replica_runner.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>

#include "dp/detail/data_parallel/carried_state.h"
#include "dp/detail/data_parallel/intraop_pause.h"
#include "dp/detail/data_parallel/replica_error.h"

namespace dp::detail {

ReplicaRunner::ReplicaRunner(std::vector<c10::Device> devices)
    : devices_(std::move(devices)) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].is_cpu()) {
      on_cpu_.push_back(i);
    }
  }
}

void ReplicaRunner::run(const std::vector<size_t>& replicas,
                        const std::function<void(size_t)>& job) {
  if (!threads_) {
    threads_ = std::make_unique<ReplicaThreads>(devices_.size());
  }
  if (!on_cpu_.empty()) {
    share_out_intraop_threads();
  }
  const CarriedState state(devices_);
  std::vector<std::exception_ptr> errors;
  const auto run = [&] {
    errors = threads_->run(replicas, [&](size_t replica) {
      const CarriedState::Guard guard(state, replica);
      job(replica);
    });
  };
  on_cpu_.empty() ? run() : while_intraop_threads_sleep(run);
  for (size_t i = 0; i < errors.size(); ++i) {
    if (errors[i]) {
      rethrow_from(errors[i],
                   c10::str("replica ",
                            replicas[i],
                            " of ",
                            devices_.size(),
                            " on ",
                            devices_[replicas[i]]));
    }
  }
}

// With the caller's number of intra-op threads each, replicas on the CPU would
// get in each other's way. The number is a thread's own, but setting it also
// sets the one that new threads start with: the caller puts that back.
void ReplicaRunner::share_out_intraop_threads() {
  const int all = at::get_num_threads();
  const int share = std::max(1, all / static_cast<int>(on_cpu_.size()));
  if (share == intraop_share_) {
    return;
  }
  threads_->run(on_cpu_, [share](size_t) {
    at::get_num_threads();  // starts with the default, which must be over
    at::set_num_threads(share);
  });
  at::set_num_threads(all);
  intraop_share_ = share;
}

}  // namespace dp::detail
