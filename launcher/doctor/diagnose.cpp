#include "launcher/doctor/diagnose.h"

#include <iterator>

#include "launcher/doctor/diagnose_hosts.h"

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
  if (machine.hosts) {
    const Findings some = diagnose_hosts(*machine.hosts);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace launcher
