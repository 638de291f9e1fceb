#include "ddp/job/detail/stuck_group_aborter.h"

#include <algorithm>
#include <utility>

#include "ddp/job/detail/lock_within.h"
#include "ddp/job/leave_barrier.h"

namespace ddp::detail {
namespace {

constexpr std::chrono::milliseconds kGrace{500};

void abort(MonitoredBackend& group) {
  try {
    group.abort();
  } catch (const std::exception& error) {
    TORCH_WARN("rank ",
               group.getRank(),
               " could not end a collective that a rank has left: ",
               error.what());
  }
}

/// Ends a wait for a departed rank. A rank that left by a call or an exception
/// keeps its connections, so the group is aborted, and the leave barrier is
/// ended to release that rank. The connections of a dead process are closed.
/// Gloo reports this to ranks that wait for the dead process, but not to ranks
/// that wait for a third rank that got such an error; so the group is aborted
/// only if it still has running work.
void end_vain_wait(MonitoredBackend& group,
                   const Departure& departure,
                   c10d::Store& store) {
  const bool is_closed = departure.how == Departure::How::vanished;
  if (!is_closed || group.may_be_working()) {
    abort(group);
  }
  try {
    if (!is_closed) {
      end_leave_barrier(store);
    }
  } catch (const std::exception&) {
    // The store is gone, and rank 0 with it: no rank waits there.
  }
}

}  // namespace

void StuckGroupAborter::add(c10::intrusive_ptr<MonitoredBackend> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({std::move(group), std::nullopt});
}

std::vector<c10::intrusive_ptr<MonitoredBackend>> StuckGroupAborter::groups()
    const {
  const std::lock_guard lock(mutex_);
  std::vector<c10::intrusive_ptr<MonitoredBackend>> groups;
  groups.reserve(groups_.size());
  for (const auto& [group, since] : groups_) {
    groups.push_back(group);
  }
  return groups;
}

bool StuckGroupAborter::may_be_working() const {
  const auto all = groups();
  return std::any_of(all.begin(), all.end(), [](const auto& group) {
    return group->may_be_working();
  });
}

std::map<std::string, uint64_t> StuckGroupAborter::started() const {
  std::map<std::string, uint64_t> started;
  const auto lock = lock_within_a_second(mutex_);
  if (!lock) {
    return started;
  }
  for (const auto& [group, since] : groups_) {
    if (!group->has_failed()) {
      started[group->members().name] = group->started();
    }
  }
  return started;
}

bool StuckGroupAborter::abort_stuck_groups(c10d::Store& store) {
  bool is_any_open = false;
  for (const auto& [group, departure] : in_vain(is_any_open)) {
    end_vain_wait(*group, departure, store);
  }
  return is_any_open;
}

StuckGroupAborter::Vain StuckGroupAborter::in_vain(bool& is_any_open) {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  Vain result;
  for (auto& [group, since] : groups_) {
    if (!group->is_open()) {
      continue;
    }
    is_any_open = true;
    const auto departure = group->departed_member();
    if (!departure) {
      since.reset();
    } else if (!since) {
      since = now;
    } else if (now - *since >= kGrace) {
      result.emplace_back(group, *departure);
    }
  }
  return result;
}

}  // namespace ddp::detail
