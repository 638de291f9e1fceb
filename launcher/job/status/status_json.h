#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/status/job_status.h"

namespace launcher {

/// Longer than any answer.
inline constexpr size_t kMostStatusBytes = size_t{1} << 20;

/// The status as one line of JSON:
/// - job, host, program: texts; pid of ddprun, supervisor_pid of its other
///   process;
/// - phase: joining, running, preempted, stopping, killing, pausing, waiting,
///   draining or done, as launcher/job/policy/policy.h says; uptime_seconds;
/// - attempts that were started; generation, restarts, host_rank, host_count,
///   first_rank, world_size and store of the last one; max_restarts, and
///   restart_window_seconds that it counts in, or null;
/// - logs: the last attempt's folder, or null where files are not kept;
/// - worker_count of this host, and ranks: an object for each of its workers
///   (of the first 1024) with rank, local_rank, pid, state (running, stopped
///   by a signal, ending, ended), exit_code or signal of one that has ended,
///   asked_by (the signal by which ddprun asked it to end, or null) and
///   progress: null, or, with --hang-timeout, text (null before the first
///   report) and seconds_ago.
std::string status_json(const JobStatus& status);

/// What such a line says; nothing where it is none.
std::optional<JobStatus> parse_status(std::string_view text);

}  // namespace launcher
