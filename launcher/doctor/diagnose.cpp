#include "launcher/doctor/diagnose.h"

#include <iterator>

#include "launcher/base/text.h"

namespace launcher {

Findings diagnose(const MachineFacts& machine, const JobShape& job) {
  Findings all;
  if (!job.refusal.empty()) {
    all.push_back(failing("job", job.refusal));
  }
  for (const auto part :
       {diagnose_gpus, diagnose_libraries, diagnose_network, diagnose_system}) {
    Findings some = part(machine, job);
    all.insert(all.end(),
               std::make_move_iterator(some.begin()),
               std::make_move_iterator(some.end()));
  }
  if (job.hosts > 1) {
    all.push_back(
        all_well("hosts",
                 count_text(job.hosts, "host") +
                     ", of which this is one; the same options with "
                     "ddprun-allreduce on all of them, in place of --doctor, "
                     "test the connections"));
  }
  return all;
}

}  // namespace launcher
