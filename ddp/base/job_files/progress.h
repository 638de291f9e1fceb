#pragma once

#include <chrono>
#include <string_view>

// Progress reports of a rank for `ddprun --hang-timeout SECONDS`. If a rank
// makes no progress for this time, ddprun names the rank, ends the group and
// restarts it as after any failure. The time of a rank counts from its first
// report on, at the latest from `init_process_group()`. Includes no LibTorch.
namespace ddp {

/// Reports progress of this rank. Call it in long loops that call no function
/// of ddp. Usual training needs no call: each collective, each forward of a
/// `DistributedDataParallel`, each completed backward pass, each call of a
/// `dp::ParameterClient` and each update of a `dp::serve` is a report. From
/// `init_process_group()` until a backward pass of several ranks has completed,
/// or a second forward (also of an evaluation) or second call of a
/// `dp::ParameterClient` has begun, five times the limit is allowed, and after
/// `destroy_process_group()` there is no limit. A rank that waits for other
/// ranks does not count as hung, unless all ranks of its host are overdue and
/// wait. Then the ranks without a report count as hung; if each rank has
/// reported, the ranks with the fewest collectives.
///
/// Takes a few nanoseconds: it writes to memory shared with ddprun. Does
/// nothing without `ddprun --hang-timeout`. Thread-safe.
///
/// The report of a hang shows the last text: its first 63 bytes, with a
/// question mark for each byte that is not printable ASCII. An empty text keeps
/// the previous one. Each wait of the library for other ranks sets a text, too.
/// Words like `pass=3` are not shown: ddprun reads NAME=NUMBER as a value of
/// the report if NAME is pid, beat, pass, collectives, waits or limit.
///
/// Example:
/// @code
///   for (int64_t shard = 0; shard < shards; ++shard) {
///     ddp::report_progress("reading shards");
///     read(shard);
///   }
/// @endcode
void report_progress(std::string_view text = {});

/// Raises the limit of this rank in its scope, for an evaluation or a save that
/// reports no progress. The limit must be finite, so that a hang inside the
/// scope is found. The end of the scope is a progress report. Before the end of
/// the first step the limit replaces the five times of --hang-timeout, and a
/// shorter limit shortens the time there.
///
/// On one host it is enough if the working rank has a guard. On several hosts
/// the ranks that wait for it need a guard, too: a waiting rank has twice the
/// limit there, because a host does not see the reports of another host.
///
/// Scopes can be nested; the innermost one applies. The limit belongs to the
/// process, so create guards on one thread only.
///
/// Example:
/// @code
///   {
///     ddp::QuietGuard quiet(std::chrono::minutes(20), "evaluating");
///     if (ddp::rank() == 0) evaluate(*net);
///     ddp::barrier();
///   }
/// @endcode
class QuietGuard {
 public:
  /// @param limit  limit in this scope. A limit below --hang-timeout has no
  ///   effect: --hang-timeout then applies. Below one second counts as one.
  explicit QuietGuard(std::chrono::seconds limit, std::string_view text = {});
  ~QuietGuard();
  QuietGuard(const QuietGuard&) = delete;
  QuietGuard& operator=(const QuietGuard&) = delete;

 private:
  std::chrono::seconds outer_;
};

}  // namespace ddp
