#include "ddp/detail/process_group/departure.h"

#include <string>

#include <c10/util/Exception.h>

namespace ddp::detail {
namespace {

constexpr const char* kCount = "leave/count";
constexpr const char* kAll = "leave/all";

std::string key_of(int rank) {
  return "leave/rank/" + std::to_string(rank);
}

}  // namespace

void note_departure(c10d::Store& store, int rank, int world_size) {
  const bool is_first = store.add(key_of(rank), 1) == 1;
  if (is_first && store.add(kCount, 1) == world_size) {
    store.set(kAll, std::vector<uint8_t>{1});
  }
}

std::vector<int> wait_for_departures(
    c10d::Store& store,
    int world_size,
    std::chrono::milliseconds timeout) noexcept {
  std::vector<int> missing;
  try {
    try {
      store.wait({kAll}, timeout);
      return missing;
    } catch (const c10::Error&) {
      // Too late, or the store is gone.
    }
    for (int rank = 0; rank < world_size; ++rank) {
      if (!store.check({key_of(rank)})) {
        missing.push_back(rank);
      }
    }
  } catch (const std::exception&) {
    missing.clear();
  }
  return missing;
}

}  // namespace ddp::detail
