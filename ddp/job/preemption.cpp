#include "ddp/job/preemption.h"

#include "ddp/base/job_files/stop_file.h"
#include "ddp/job/current_job.h"
#include "ddp/job/detail/peer_state.h"
#include "ddp/job/process_group.h"

namespace ddp {

bool stop_requested() {
  auto* file = detail::stop_file();
  const bool is_requested = file != nullptr && file->says_stop();
  if (world_size() == 1) {
    return is_requested;
  }
  const auto record = detail::peer_state_of(*process_group());
  if (is_requested) {
    record->stop_vote().vote_to_stop();
    detail::request_stop();
  }
  return record->stop_vote().is_agreed();
}

}  // namespace ddp
