#include "launcher/job/report/hang_text.h"

#include <algorithm>
#include <utility>

#include "ddp/base/text/rank_text.h"
#include "launcher/job/report/failure_text.h"

namespace launcher {
namespace {

std::string last_report_text(bool has_reported, const std::string& last) {
  return !has_reported  ? "no report yet"
         : last.empty() ? "last report without a text"
                        : "last report \"" + last + "\"";
}

std::string place_of(const HungWorker& worker) {
  std::string text = "  rank " + std::to_string(worker.rank) + " (local rank " +
                     std::to_string(worker.local_rank) + ", pid " +
                     std::to_string(worker.pid) + "): " +
                     last_report_text(worker.has_reported, worker.last_report);
  if (worker.is_stopped) {
    text += "; it is stopped by a signal, SIGCONT would continue it";
  }
  return text + "\n";
}

/// Returns the last reports of the other ranks; ranks with equal reports share
/// a line.
std::string reports_of_others(const Hang& hang) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const RankReport& other : hang.others) {
    const std::string text = last_report_text(other.has_reported, other.last);
    const auto group =
        std::find_if(groups.begin(), groups.end(), [&text](const auto& known) {
          return known.first == text;
        });
    if (group == groups.end()) {
      groups.push_back({text, {other.rank}});
    } else {
      group->second.push_back(other.rank);
    }
  }
  std::string text;
  for (auto& [report, ranks] : groups) {
    text +=
        "  " + ddp::detail::rank_list(std::move(ranks)) + ": " + report + "\n";
  }
  return text;
}

}  // namespace

std::string hang_report(const AttemptResult& result, const Hang& hang) {
  std::string text =
      headline(hang) + "\n  host " + result.host + attempt_text(result) + "\n";
  AttemptResult others = result;
  auto& exits = others.workers.exits;
  for (const HungWorker& worker : hang.workers) {
    text += place_of(worker);
    const auto exit = std::find_if(
        exits.begin(), exits.end(), [&worker](const WorkerExit& entry) {
          return entry.local_rank == worker.local_rank;
        });
    if (exit != exits.end()) {
      text += stderr_text(*exit);
      exits.erase(exit);
    }
  }
  return text + reports_of_others(hang) + others_text(others, nullptr);
}

}  // namespace launcher
