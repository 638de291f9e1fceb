#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ddp::detail {

/// Notes that a rank has left the job: by itself, or by another one that knows
/// that it is gone. A rank counts once, however often it is noted.
///
/// @throws c10::Error when the store is gone.
void note_departure(c10d::Store& store, int rank, int world_size);

/// Waits until all ranks have left, at most `timeout`. Returns those that have
/// not; nothing when the store is gone or another rank has ended the wait.
std::optional<std::vector<int>> wait_for_departures(
    c10d::Store& store,
    int world_size,
    std::chrono::milliseconds timeout) noexcept;

/// Ends the wait of all ranks.
/// @throws c10::Error when the store is gone.
void end_leave_barrier(c10d::Store& store);

/// Tells the job of `ddp::init_process_group` that a rank has died, so that
/// `ddp::destroy_process_group` does not wait for it. Does nothing when the
/// store is gone: then nobody waits.
/// @throws c10::Error without a process group.
void report_death(int rank);

}  // namespace ddp::detail
