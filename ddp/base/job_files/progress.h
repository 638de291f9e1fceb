#pragma once

#include <chrono>
#include <string_view>

// What a rank tells `ddprun --hang-timeout SECONDS`, which ends a group in
// which a rank makes no progress for so long, names that rank, and starts all
// again as after any failure. Includes no LibTorch.
namespace ddp {

/// Tells that this rank makes progress: for a loop that takes long and calls
/// nothing of ddp. A usual training needs no call: each collective, each
/// forward of a `DistributedDataParallel` and each backward pass that ends is a
/// report; five times the limit is allowed from `init_process_group()` to the
/// end of the first step, any time after `destroy_process_group()`. A rank that
/// waits for others is not the one that hangs.
///
/// A few nanoseconds: it writes into memory that ddprun reads. Without
/// `ddprun --hang-timeout` it does nothing. Any thread.
///
/// @param what for people: the report of a hang shows the last one; at most 63
///   bytes of printable ASCII are kept. Empty: keeps the one before
///
/// Example:
/// @code
///   for (int64_t shard = 0; shard < shards; ++shard) {
///     ddp::report_progress("reading shards");
///     read(shard);
///   }
/// @endcode
void report_progress(std::string_view what = {});

/// While it lives this rank may take longer: for an evaluation or a save that
/// reports nothing. It needs a bound all the same, that is what finds a hang in
/// it. The end of the scope is a report.
///
/// On one host it is enough that the rank that works has one. With several
/// hosts all ranks need one that wait for it: ranks that wait get twice the
/// limit there, because one host does not see the reports of another.
///
/// Scopes may be nested; the inner one counts. One thread.
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
  /// @param limit at least one second; replaces --hang-timeout where it is
  ///   longer
  /// @param what as in report_progress()
  explicit QuietGuard(std::chrono::seconds limit, std::string_view what = {});
  ~QuietGuard();
  QuietGuard(const QuietGuard&) = delete;
  QuietGuard& operator=(const QuietGuard&) = delete;

 private:
  std::chrono::seconds outer_;
};

}  // namespace ddp
