#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/status/job_status.h"

namespace launcher {

/// Upper bound for the length of a status.
inline constexpr size_t kMostStatusBytes = size_t{1} << 20;

/// Returns the status as one line of JSON:
/// - job, host, program: texts; pid of ddprun, supervisor_pid of its second
///   process;
/// - phase: joining, running, preempted, stopping, killing, waiting,
///   draining or done, see launcher/job/policy/policy.h; uptime_seconds;
/// - attempts: number of started attempts; generation, restarts, host_rank,
///   host_count, first_rank, world_size and store of the last attempt;
///   max_restarts;
/// - logs: the last attempt's folder, or null if files are not kept;
/// - worker_count of this host, and ranks: an object for each of its workers
///   (the first 1024) with rank, local_rank, pid, state (running, stopped by a
///   signal, ending, ended), exit_code or signal of an ended worker, asked_by
///   (the signal by which ddprun asked it to end, or null) and progress: null,
///   or, with --hang-timeout, text (null before the first report) and
///   seconds_ago.
std::string status_json(const JobStatus& status);

/// Parses such a line; returns std::nullopt if it is invalid.
std::optional<JobStatus> parse_status(std::string_view text);

}  // namespace launcher
