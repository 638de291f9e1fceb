#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/arg.h>

namespace ddp {

/// Options of `spawn`.
struct SpawnOptions {
  /// If a rank fails, the others get SIGTERM, and after this time SIGKILL.
  TORCH_ARG(std::chrono::milliseconds, grace_period) = std::chrono::seconds(30);
};

/// The failure of a rank: it threw, exited with a code other than 0, or was
/// ended by a signal.
struct RankFailure {
  int rank = 0;       ///< rank that failed
  pid_t pid = 0;      ///< its process
  int exit_code = 0;  ///< 1 if it threw; 0 if a signal ended it
  int signal = 0;     ///< 0 if no signal ended it
  /// Text of the exception that left the function, or std::nullopt.
  std::optional<std::string> exception;
  /// Time of the exception; for other failures the last time before at which a
  /// `join` began to wait, or noticed an end.
  std::chrono::steady_clock::time_point time;
};

/// Pure: describes the failure, "rank 1 was ended by signal 11 (Segmentation
/// fault)". For an exception, the description contains its text, which may have
/// several lines.
std::string describe(const RankFailure& failure);

/// Thrown by `spawn` if a rank has failed. Its `what()` is
/// `describe(failure())`.
class SpawnError : public c10::Error {
 public:
  /// Creates the error for a failure.
  explicit SpawnError(RankFailure failure);

  /// Returns the failure of the rank that failed first. Of failures that one
  /// `join` notices, those without an exception count as the first.
  const RankFailure& failure() const { return failure_; }
  /// Returns the rank that failed first.
  int rank() const { return failure_.rank; }

 private:
  RankFailure failure_;
};

/// Runs `function(local_rank)` in `nprocs` processes on this host and waits for
/// them. For programs that start their own ranks; `ddprun` offers more
/// (restarts, many hosts, output by rank).
///
/// Every rank is a fork of this process with the environment that torchrun
/// would set (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, a free MASTER_PORT,
/// ...), so that `ddp::init_process_group()` connects the ranks. With more than
/// one rank and without OMP_NUM_THREADS each rank computes with one thread.
/// SIGTERM has its default action. All other state is copied at the fork:
/// changes that `function` makes, also to its captures, are not visible in this
/// process.
///
/// When the function returns or throws, the rank flushes its streams and ends
/// at once. Destructors of static objects and atexit functions do not run
/// there, because they belong to this process. If a rank fails, the others are
/// stopped. No rank outlives this process (the kernel sends SIGKILL at its
/// end), and no rank is left when this function returns, unless the kernel
/// holds a killed rank (which waits for a device) for more than ten seconds.
///
/// @param nprocs  std::nullopt: one process per GPU, or 1 without a GPU.
/// @throws SpawnError for the rank that failed first. c10::Error if `nprocs` is
///   below 1, if no process can be created (std::system_error for the one that
///   counts the GPUs), if the GPUs cannot be counted within a minute, if no
///   port of 127.0.0.1 can be reserved, if other code of this process (a
///   SIGCHLD handler) has waited for a rank, or if this process cannot be
///   forked: it has several threads (threads of OpenMP, CUDA and Gloo do not
///   survive a fork, so call this before the first tensor operation), has
///   opened a GPU, or ignores SIGCHLD.
///
/// Example:
/// @code
///   int main() {
///     ddp::spawn([](int local_rank) {
///       ddp::init_process_group();
///       train();
///       ddp::destroy_process_group();
///     }, 4);
///   }
/// @endcode
///
/// Source: torch.multiprocessing.spawn.
void spawn(const std::function<void(int local_rank)>& function,
           std::optional<int> nprocs = std::nullopt,
           const SpawnOptions& options = {});

/// Ranks of `spawn` without the wait, so that the caller can do other work.
///
/// Thread contract: one thread at a time. The kernel binds the lives of the
/// ranks to the thread that created them, so this thread must not end before
/// `join`.
///
/// Example:
/// @code
///   ddp::SpawnContext ranks(train, 4);
///   while (!ranks.join(std::chrono::seconds(1))) show_progress();
/// @endcode
class SpawnContext {
 public:
  /// Starts the ranks; parameters and errors as for `spawn`.
  explicit SpawnContext(const std::function<void(int local_rank)>& function,
                        std::optional<int> nprocs = std::nullopt,
                        const SpawnOptions& options = {});
  /// Ends the ranks that still run with SIGKILL.
  ~SpawnContext();
  /// Takes over the ranks of another object.
  SpawnContext(SpawnContext&&) noexcept;
  /// As above. Ranks of this object that still run end with SIGKILL.
  SpawnContext& operator=(SpawnContext&&) noexcept;

  /// Waits until all ranks have ended, at most `timeout`. Returns true if they
  /// have. If a rank has failed, the function also waits for the others to
  /// stop: up to `grace_period`, and ten seconds after SIGKILL.
  /// @throws SpawnError if a rank has failed, after the other ranks were
  ///   stopped. c10::Error if other code of this process has waited for a rank.
  bool join(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  /// Process ids by rank. The kernel may reuse the pids of ranks that have
  /// ended.
  std::vector<pid_t> pids() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddp
