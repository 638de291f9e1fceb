#include "ddp/job/detail/open_groups.h"

#include <algorithm>
#include <utility>

#include "ddp/job/detail/lock_within.h"

namespace ddp::detail {
namespace {

constexpr std::chrono::milliseconds kGrace{500};
constexpr std::chrono::milliseconds kLongWait{3'000};

void abort(MonitoredBackend& group, const std::string& why) {
  try {
    group.abort_because(why);
  } catch (const std::exception& error) {
    TORCH_WARN("rank ",
               group.getRank(),
               " could not end a collective that never completes: ",
               error.what());
  }
}

}  // namespace

void OpenGroups::add(c10::intrusive_ptr<MonitoredBackend> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
}

std::vector<c10::intrusive_ptr<MonitoredBackend>> OpenGroups::all() const {
  const auto lock = lock_within_a_second(mutex_);
  if (!lock) {
    return {};  // the process is ending
  }
  groups_.erase(
      std::remove_if(groups_.begin(),
                     groups_.end(),
                     [](const auto& group) { return group->is_closed(); }),
      groups_.end());
  return groups_;
}

OpenGroups::MakingScope::MakingScope(OpenGroups& groups,
                                     const GroupMembers& members)
    : groups_(groups), name_(members.name) {
  const std::lock_guard lock(groups_.mutex_);
  groups_.makings_[name_] = {
      members.ranges, Clock::now(), std::this_thread::get_id(), ""};
}

OpenGroups::MakingScope::~MakingScope() {
  const std::lock_guard lock(groups_.mutex_);
  groups_.makings_.erase(name_);
}

std::string OpenGroups::MakingScope::error() const {
  const std::lock_guard lock(groups_.mutex_);
  return groups_.makings_.at(name_).error;
}

RankReport OpenGroups::report() const {
  RankReport report;
  const auto now = Clock::now();
  std::map<std::thread::id, int> waits;  // index in the report
  std::vector<std::thread::id> starters;
  for (const auto& group : all()) {
    if (!group->is_open() || group->departed_member()) {
      continue;  // a departure ends the waits of its groups
    }
    const auto progress = group->progress();
    for (const auto& wait : progress.waits) {
      waits[wait.thread] = static_cast<int>(report.waits.size());
      report.waits.push_back({group->members().name,
                              group->members().ranges,
                              wait.number,
                              wait.call,
                              wait.operation});
      report.waits_long = report.waits_long || now - wait.since >= kLongWait;
    }
    report.groups.push_back(
        {group->members().name, progress.started, -1, progress.calls});
    starters.push_back(progress.last_thread);
  }
  if (const auto lock = lock_within_a_second(mutex_)) {
    for (const auto& [name, making] : makings_) {
      const std::string call = "new_group over ranks " + making.ranges;
      waits[making.thread] = static_cast<int>(report.waits.size());
      report.waits.push_back({name, making.ranges, 0, call, call});
      report.waits_long = report.waits_long || now - making.since >= kLongWait;
    }
  }
  // The thread that used a group last is expected to use it next.
  for (size_t i = 0; i < starters.size(); ++i) {
    const auto wait = waits.find(starters[i]);
    report.groups[i].blocked_by = wait == waits.end() ? -1 : wait->second;
  }
  return report;
}

bool OpenGroups::end_waits_for_departed() {
  bool is_any_left = false;
  for (const auto& group : all()) {
    if (!group->is_open() || !group->departed_member()) {
      continue;
    }
    const auto now = Clock::now();
    const auto since =
        left_since_.emplace(group->members().name, now).first->second;
    if (now - since < kGrace) {
      is_any_left = true;
    } else if (group->may_be_working()) {
      abort(*group, "");
    }
  }
  return is_any_left;
}

bool OpenGroups::end_dead_waits(const DeadWaits& dead) {
  const auto is_dead = [&dead](const std::string& name) {
    return std::count(dead.groups.begin(), dead.groups.end(), name) > 0;
  };
  bool takes_part = false;
  for (const auto& group : all()) {
    if (group->is_open() && is_dead(group->members().name)) {
      takes_part = true;
      abort(*group, dead.error);
    }
  }
  const std::lock_guard lock(mutex_);
  for (auto& [name, making] : makings_) {
    if (is_dead(name)) {
      takes_part = true;
      making.error = dead.error;
    }
  }
  return takes_part;
}

bool OpenGroups::has_open_pass() const {
  const auto groups = all();
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return group->has_open_pass();
  });
}

}  // namespace ddp::detail
