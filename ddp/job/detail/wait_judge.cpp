#include "ddp/job/detail/wait_judge.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "ddp/base/text/rank_text.h"
#include "ddp/base/text/record.h"

namespace ddp::detail {
namespace {

using Reports = std::map<int, RankReport>;
/// A wait: the rank and the index in its report.
using WaitId = std::pair<int, int>;

constexpr const char* kLeave = "destroy_process_group";

const GroupProgress* progress_in(const RankReport& report,
                                 const std::string& group) {
  const auto found = std::find_if(
      report.groups.begin(), report.groups.end(), [&](const auto& item) {
        return item.group == group;
      });
  return found == report.groups.end() ? nullptr : &*found;
}

uint64_t started_in(const RankReport& report, const std::string& group) {
  const auto* progress = progress_in(report, group);
  return progress == nullptr ? 0 : progress->started;
}

/// Returns the call of a collective (group and number) that the rank has
/// started; "" if the rank has not started it or has not reported it.
std::string started_call(const RankReport& report,
                         const std::pair<std::string, uint64_t>& collective) {
  const auto* progress = progress_in(report, collective.first);
  if (progress == nullptr || progress->started < collective.second) {
    return "";
  }
  const uint64_t back = progress->started - collective.second;
  const auto& calls = progress->calls;
  return back < calls.size() ? calls[calls.size() - 1 - back] : "";
}

/// A collective that a rank waits for.
struct Awaited {
  std::vector<WaitId> waits;
  /// Members that have not started the collective, each with the wait that
  /// blocks it, or with the index -1 if it leaves.
  std::vector<WaitId> kept;
  bool is_dead = true;
};

class Judge {
 public:
  explicit Judge(const Reports& reports) : reports_(reports) {}

  std::optional<DeadWaits> find() {
    list_awaited();
    find_different_calls();
    find_circles();
    find_unmet();
    if (groups_.empty()) {
      return std::nullopt;
    }
    return DeadWaits{error(), {groups_.begin(), groups_.end()}};
  }

 private:
  using Collective = std::pair<std::string, uint64_t>;  // group and number

  const WaitReport& wait_of(const WaitId& id) const {
    return reports_.at(id.first).waits.at(static_cast<size_t>(id.second));
  }

  void list_awaited() {
    for (const auto& [rank, report] : reports_) {
      for (size_t i = 0; i < report.waits.size(); ++i) {
        const auto& wait = report.waits[i];
        awaited_[{wait.group, wait.number}].waits.emplace_back(
            rank, static_cast<int>(i));
      }
    }
    for (auto& [collective, awaited] : awaited_) {
      const auto& members = wait_of(awaited.waits.front()).members;
      for (const int member : parse_member_ranges(members)) {
        const auto report = reports_.find(member);
        if (report != reports_.end() &&
            !is_waiting(report->second, collective)) {
          add_kept(member, report->second, collective, awaited);
        }
      }
    }
  }

  static bool is_waiting(const RankReport& report,
                         const Collective& collective) {
    return std::any_of(
        report.waits.begin(), report.waits.end(), [&](const auto& wait) {
          return wait.group == collective.first &&
                 wait.number == collective.second;
        });
  }

  static void add_kept(int member,
                       const RankReport& report,
                       const Collective& collective,
                       Awaited& awaited) {
    const auto* progress = progress_in(report, collective.first);
    if (progress == nullptr && collective.second == 0) {
      progress = progress_in(report, kWorldGroup);
    } else if (progress != nullptr && progress->started >= collective.second) {
      return;
    }
    if (report.leaves) {
      awaited.kept.emplace_back(member, -1);
    } else if (progress != nullptr && progress->blocked_by >= 0) {
      awaited.kept.emplace_back(member, progress->blocked_by);
    }
  }

  void find_different_calls() {
    for (const auto& [collective, awaited] : awaited_) {
      std::map<int, std::string> calls;  // by rank
      std::set<WaitId> waits(awaited.waits.begin(), awaited.waits.end());
      for (const auto& id : awaited.waits) {
        calls[id.first] = wait_of(id).call;
      }
      for (const auto& [rank, report] : reports_) {
        const auto call = started_call(report, collective);
        const int wait =
            call.empty() ? -1
                         : progress_in(report, collective.first)->blocked_by;
        if (wait >= 0 && calls.emplace(rank, call).second) {
          waits.emplace(rank, wait);
        }
      }
      std::set<std::string> different;
      std::vector<std::string> of_ranks;
      for (auto& [rank, call] : calls) {
        if (!call.empty()) {  // else it is too old
          different.insert(call);
          of_ranks.resize(static_cast<size_t>(rank) + 1);
          of_ranks.back() = call;
        }
      }
      if (different.size() > 1) {
        groups_.insert(collective.first);
        named_.insert(waits.begin(), waits.end());
        reason_ = "collective " + std::to_string(collective.second) +
                  " of group " + collective.first +
                  " differs: " + texts_by_rank(of_ranks);
      }
    }
  }

  /// Starts with all waits and removes the waits that may end, until none is
  /// left to remove.
  void find_circles() {
    for (bool changes = true; changes;) {
      changes = false;
      for (auto& [collective, awaited] : awaited_) {
        if (awaited.is_dead && !is_kept(awaited)) {
          awaited.is_dead = false;
          changes = true;
        }
      }
    }
    for (const auto& [collective, awaited] : awaited_) {
      if (awaited.is_dead) {
        groups_.insert(collective.first);
        named_.insert(awaited.waits.begin(), awaited.waits.end());
        for (const auto& id : awaited.kept) {
          if (keeps(id)) {
            named_.insert(id);
          }
        }
      }
    }
  }

  bool keeps(const WaitId& id) const {
    if (id.second < 0) {
      return true;
    }
    const auto& wait = wait_of(id);
    return awaited_.at({wait.group, wait.number}).is_dead;
  }

  bool is_kept(const Awaited& awaited) const {
    return std::any_of(awaited.kept.begin(),
                       awaited.kept.end(),
                       [this](const auto& id) { return keeps(id); });
  }

  /// A rank that leaves starts nothing more.
  void find_unmet() {
    std::map<std::string, uint64_t> most;
    for (const auto& [rank, report] : reports_) {
      for (const auto& progress : report.groups) {
        auto& number = most[progress.group];
        number = std::max(number, progress.started);
      }
    }
    for (const auto& [rank, report] : reports_) {
      for (const auto& progress : report.groups) {
        if (!report.leaves || progress.started >= most[progress.group]) {
          continue;
        }
        named_.emplace(rank, -1);
        if (groups_.insert(progress.group).second) {
          unmet_ += "; collective " + std::to_string(most[progress.group]) +
                    " of group " + progress.group + " has been started by " +
                    ranks_at(progress.group, most[progress.group]) +
                    ", but not by rank " + std::to_string(rank);
        }
      }
    }
  }

  std::string ranks_at(const std::string& group, uint64_t number) const {
    std::vector<int> ranks;
    for (const auto& [rank, report] : reports_) {
      if (started_in(report, group) == number) {
        ranks.push_back(rank);
      }
    }
    return rank_list(std::move(ranks));
  }

  /// "ranks 0, 2 wait in reduce_tensor, rank 1 in barrier: ..."
  std::string error() const {
    std::map<std::string, std::vector<int>> calls;
    for (const auto& id : named_) {
      calls[id.second < 0 ? kLeave : wait_of(id).operation].push_back(id.first);
    }
    std::vector<std::pair<std::vector<int>, std::string>> ordered;
    ordered.reserve(calls.size());
    for (auto& [operation, ranks] : calls) {
      ordered.emplace_back(std::move(ranks), operation);
    }
    std::sort(ordered.begin(), ordered.end());
    std::string text;
    bool has_pass = false;
    for (auto& [ranks, operation] : ordered) {
      const bool are_several = ranks.size() > 1;
      text += text.empty() ? rank_list(ranks) +
                                 (are_several ? " wait in " : " waits in ")
                           : ", " + rank_list(ranks) + " in ";
      text += operation;
      has_pass = has_pass || operation.find("gradient") != std::string::npos;
    }
    text += unmet_ + ": ";
    text += reason_.empty() ? "these calls never meet, so none of them can end"
                            : reason_;
    text += ". All ranks of a group must make the same calls in the same order";
    if (has_pass && ordered.size() > 1) {
      text +=
          "; a backward pass that one rank makes alone belongs in a "
          "ddp::NoSyncGuard";
    }
    return text;
  }

  const Reports& reports_;
  std::map<Collective, Awaited> awaited_;
  std::set<std::string> groups_;
  std::set<WaitId> named_;
  std::string reason_;
  std::string unmet_;
};

}  // namespace

std::string member_ranges(const std::vector<int>& ranks) {
  std::string text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    if (!text.empty()) {
      text += ',';
    }
    text += std::to_string(ranks[first]);
    text += '-';
    text += std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

std::vector<int> parse_member_ranges(const std::string& text) {
  std::vector<int> ranks;
  std::istringstream in(text);
  int first = 0;
  int last = 0;
  char dash = 0;
  while (in >> first >> dash >> last && last - first < (1 << 24)) {
    for (int rank = first; rank <= last; ++rank) {
      ranks.push_back(rank);
    }
    in.get();  // skips the comma
  }
  return ranks;
}

std::optional<DeadWaits> find_dead_waits(const Reports& reports) {
  return Judge(reports).find();
}

std::string to_text(const RankReport& report) {
  std::vector<std::string> fields{report.leaves ? "1" : "0",
                                  std::to_string(report.waits.size())};
  for (const auto& wait : report.waits) {
    fields.insert(fields.end(),
                  {wait.group,
                   wait.members,
                   std::to_string(wait.number),
                   wait.call,
                   wait.operation});
  }
  for (const auto& progress : report.groups) {
    fields.insert(fields.end(),
                  {progress.group,
                   std::to_string(progress.started),
                   std::to_string(progress.blocked_by),
                   join_fields(progress.calls)});
  }
  return join_fields(fields);
}

std::optional<RankReport> parse_rank_report(const std::string& text) {
  const auto fields = split_fields(text);
  if (!fields || fields->size() < 2) {
    return std::nullopt;
  }
  try {
    RankReport report;
    report.leaves = fields->at(0) == "1";
    size_t at = 2;
    for (size_t waits = std::stoul(fields->at(1)); waits > 0; --waits) {
      WaitReport wait;
      wait.group = fields->at(at);
      wait.members = fields->at(at + 1);
      wait.number = std::stoull(fields->at(at + 2));
      wait.call = fields->at(at + 3);
      wait.operation = fields->at(at + 4);
      report.waits.push_back(std::move(wait));
      at += 5;
    }
    while (at < fields->size()) {
      report.groups.push_back({fields->at(at),
                               std::stoull(fields->at(at + 1)),
                               std::stoi(fields->at(at + 2)),
                               split_fields(fields->at(at + 3))
                                   .value_or(std::vector<std::string>())});
      at += 4;
    }
    const auto waits = static_cast<int>(report.waits.size());
    for (const auto& progress : report.groups) {
      if (progress.blocked_by >= waits) {
        return std::nullopt;
      }
    }
    return report;
  } catch (const std::logic_error&) {  // out_of_range, invalid_argument
    return std::nullopt;
  }
}

}  // namespace ddp::detail
