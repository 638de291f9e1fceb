#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ddp::detail {

/// Records in the store that a rank has left the job. The rank itself or
/// another rank may call this; each rank counts once.
///
/// @throws c10::Error if the store is gone.
void note_departure(c10d::Store& store, int rank, int world_size);

/// Waits until all ranks have left, at most `timeout`. Returns the ranks that
/// have not left, or std::nullopt if the store is gone or `end_leave_barrier`
/// was called.
std::optional<std::vector<int>> wait_for_departures(
    c10d::Store& store,
    int world_size,
    std::chrono::milliseconds timeout) noexcept;

/// Ends the wait of all ranks in `wait_for_departures`.
/// @throws c10::Error if the store is gone.
void end_leave_barrier(c10d::Store& store);

/// Records the death of a rank in the job of `ddp::init_process_group`, so that
/// `ddp::destroy_process_group` does not wait for it. Does nothing if the store
/// is gone, because no rank waits then.
/// @throws c10::Error without a process group.
void report_death(int rank);

}  // namespace ddp::detail
