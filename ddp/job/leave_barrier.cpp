#include "ddp/job/leave_barrier.h"

#include <string>

#include <c10/util/Exception.h>

#include "ddp/job/meeting.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;

constexpr const char* kCount = "leave/count";
constexpr const char* kAll = "leave/all";

/// Value of kAll after end_leave_barrier().
const std::vector<uint8_t> kEnded{0};

std::string key_of(int rank) {
  return "leave/rank/" + std::to_string(rank);
}

enum class LeaveResult { all_left, ended, too_late };

/// @throws c10::Error if the store is gone.
LeaveResult wait_for_all(c10d::Store& store, milliseconds patience) {
  try {
    store.wait({kAll}, patience);
  } catch (const c10::Error&) {
    // Time-out, or the store is gone.
  }
  if (!store.check({kAll})) {
    return LeaveResult::too_late;
  }
  return store.get(kAll) == kEnded ? LeaveResult::ended : LeaveResult::all_left;
}

}  // namespace

void note_departure(c10d::Store& store, int rank, int world_size) {
  const bool is_first = store.add(key_of(rank), 1) == 1;
  if (is_first && store.add(kCount, 1) == world_size) {
    store.set(kAll, std::vector<uint8_t>{1});
  }
}

std::optional<std::vector<int>> wait_for_departures(
    c10d::Store& store, int world_size, milliseconds timeout) noexcept {
  try {
    switch (wait_for_all(store, timeout)) {
      case LeaveResult::all_left:
        return std::vector<int>{};
      case LeaveResult::ended:
        return std::nullopt;
      default:
        return missing_ranks(store, world_size, key_of);
    }
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void end_leave_barrier(c10d::Store& store) {
  store.set(kAll, kEnded);
}

}  // namespace ddp::detail
