#include "launcher/job/status/status_text.h"

#include <algorithm>
#include <utility>

#include "launcher/base/count_text.h"
#include "launcher/base/one_line.h"
#include "launcher/base/signal_names.h"
#include "launcher/base/text_table.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostLines = 20;

std::string phase_text(const JobStatus& status) {
  const std::pair<const char*, const char*> known[] = {
      {"joining", "waits for its hosts to meet"},
      {"running", "runs"},
      {"preempted", "waits for its workers to save and to end"},
      {"stopping", "has asked its workers to end"},
      {"killing", "ends its workers with SIGKILL"},
      {"waiting", "has ended and waits for the other hosts"},
      {"draining", "writes its last output"}};
  for (const auto& [name, text] : known) {
    if (status.phase == name) {
      return text;
    }
  }
  return "is " + status.phase;
}

std::string ranks_text(int64_t first, int64_t count, int of) {
  return (count == 1 ? "rank " + std::to_string(first)
                     : "ranks " + std::to_string(first) + "-" +
                           std::to_string(first + count - 1)) +
         " of " + std::to_string(of);
}

std::string restarts_text(const JobStatus& status) {
  return std::to_string(status.restarts) + " of " +
         count_text(status.max_restarts, "restart") + " used";
}

std::string world_text(const JobStatus& status) {
  const std::string hosts = std::to_string(status.host_count);
  if (status.attempts == 0) {
    return "no worker has been started; " +
           std::to_string(status.worker_count) + " for this host, of " + hosts;
  }
  return "generation " + std::to_string(status.generation) + ", " +
         restarts_text(status) + "; host " + std::to_string(status.host_rank) +
         " of " + hosts + ", " +
         ranks_text(status.first_rank, status.worker_count, status.world_size) +
         "; rank 0's store is at " + status.store;
}

std::string state_text(const WorkerState& worker) {
  if (worker.end) {
    return worker.end->text();
  }
  const std::string asked =
      worker.asked_by != 0 ? "asked to end by " + signal_name(worker.asked_by)
                           : "";
  if (worker.is_stopped) {
    return asked.empty() ? "stopped" : "stopped, " + asked;
  }
  return asked.empty() ? "running" : asked;
}

std::string progress_text(const WorkerState& worker) {
  if (!worker.progress) {
    return "";
  }
  const std::string quiet = duration_text(worker.progress->quiet);
  if (!worker.progress->has_reported) {
    return "nothing for " + quiet;
  }
  const std::string& last = worker.progress->last;
  return (last.empty() ? "" : last + ", ") + quiet + " ago";
}

/// Returns the workers to show. If not all fit, the most interesting come
/// first.
std::vector<WorkerState> shown_of(const JobStatus& status) {
  std::vector<WorkerState> workers = status.workers;
  if (workers.size() <= kMostLines) {
    return workers;
  }
  const auto interest = [](const WorkerState& worker) {
    return std::pair(
        worker.end || worker.is_stopped || worker.asked_by != 0,
        worker.progress ? worker.progress->quiet : milliseconds(0));
  };
  std::stable_sort(workers.begin(),
                   workers.end(),
                   [&](const WorkerState& left, const WorkerState& right) {
                     return interest(left) > interest(right);
                   });
  workers.resize(kMostLines);
  return workers;
}

std::string workers_text(const JobStatus& status) {
  if (status.workers.empty()) {
    return "";
  }
  const bool reports = std::any_of(
      status.workers.begin(),
      status.workers.end(),
      [](const WorkerState& worker) { return worker.progress.has_value(); });
  std::vector<std::vector<std::string>> rows{
      {" ", "rank", "local", "pid", "state", reports ? "last progress" : ""}};
  const std::vector<WorkerState> shown = shown_of(status);
  for (const WorkerState& worker : shown) {
    rows.push_back({" ",
                    std::to_string(worker.rank),
                    std::to_string(worker.local_rank),
                    std::to_string(worker.pid),
                    state_text(worker),
                    on_one_line(progress_text(worker))});
  }
  const size_t all =
      std::max(static_cast<size_t>(status.worker_count), status.workers.size());
  return text_table(rows) +
         (all > shown.size() ? "   and " + std::to_string(all - shown.size()) +
                                   " more (--json has them)\n"
                             : "");
}

}  // namespace

std::string status_text(const JobStatus& status) {
  const std::string head = "job " + status.job + " on " + status.host +
                           ", process " + std::to_string(status.pid) + ", " +
                           status.program + ": " + phase_text(status) +
                           "; started " + duration_text(status.uptime) + " ago";
  const std::string logs =
      status.logs.empty() ? "no logs are kept (--log-dir, --redirects, --tee)"
                          : "logs are in " + status.logs;
  return on_one_line(head) + "\n   " + on_one_line(world_text(status)) +
         "\n   " + on_one_line(logs) + "\n" + workers_text(status);
}

std::string duration_text(milliseconds time) {
  using namespace std::chrono;
  const auto in = [time](auto unit) {
    return static_cast<int64_t>(time / unit);
  };
  const auto pair = [](int64_t large,
                       const char* name,
                       int64_t small,
                       const char* small_name) {
    return std::to_string(large) + " " + name + " " + std::to_string(small) +
           " " + small_name;
  };
  if (time < minutes(1)) {
    const int64_t tenths = in(milliseconds(100));
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) +
           " s";
  }
  if (time < hours(1)) {
    return pair(in(minutes(1)), "min", in(seconds(1)) % 60, "s");
  }
  return time < hours(24) ? pair(in(hours(1)), "h", in(minutes(1)) % 60, "min")
                          : pair(in(hours(24)), "d", in(hours(1)) % 24, "h");
}

}  // namespace launcher
