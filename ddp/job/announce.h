#pragma once

#include <string>

// What a rank of the job of `ddp::init_process_group` announces over the
// control channel. Without a job these functions do nothing. Thread-safe, also
// while another thread calls `ddp::destroy_process_group`.
namespace ddp::detail {

/// Tells the other ranks why this process is about to end, for their errors.
void report_fatal_error(const std::string& text) noexcept;

/// Lets `ddp::destroy_process_group` on all ranks not wait for `rank`, whose
/// process has ended or hangs.
void report_lost_rank(int rank);

/// Tells all ranks that a stop is requested.
void request_stop();

}  // namespace ddp::detail
