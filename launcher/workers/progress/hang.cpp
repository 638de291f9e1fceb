#include "launcher/workers/progress/hang.h"

#include "ddp/base/text/rank_text.h"
#include "launcher/base/text.h"

namespace launcher {

std::string headline(const Hang& hang) {
  std::vector<int> ranks;
  for (const HungWorker& worker : hang.workers) {
    ranks.push_back(worker.rank);
  }
  const HungWorker& first = hang.workers.front();
  const std::string who = ddp::detail::rank_list(std::move(ranks)) +
                          (hang.workers.size() == 1 ? " hangs" : " hang");
  return who + ": no progress for " + elapsed_text(first.quiet) + " (" +
         (first.limit > hang.timeout
              ? "it may take " + elapsed_text(first.limit) + ", "
              : "") +
         "--hang-timeout is " + elapsed_text(hang.timeout) + ")";
}

}  // namespace launcher
