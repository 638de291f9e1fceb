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
  /// When a rank has failed, the others get SIGTERM, and after this time
  /// SIGKILL.
  TORCH_ARG(std::chrono::milliseconds, grace_period) = std::chrono::seconds(30);
};

/// How a rank failed: it threw, exited with a code other than 0, or a signal
/// ended it.
struct RankFailure {
  int rank = 0;
  pid_t pid = 0;
  int exit_code = 0;  ///< 1 when it threw; 0 when a signal ended it
  int signal = 0;     ///< 0: it ended by itself
  /// Text of the exception that left the function; unset when none did.
  std::optional<std::string> exception;
  /// When it threw; of another end the last time it was seen running.
  std::chrono::steady_clock::time_point time;
};

/// Pure: one line, "rank 1 was ended by signal 11 (Segmentation fault)", and
/// for an exception its text.
std::string describe(const RankFailure& failure);

/// What `spawn` throws when a rank has failed. `what()` is `describe`.
class SpawnError : public c10::Error {
 public:
  explicit SpawnError(RankFailure failure);

  const RankFailure& failure() const { return failure_; }
  int rank() const { return failure_.rank; }

 private:
  RankFailure failure_;
};

/// Runs `function(local_rank)` in `nprocs` processes of this host, waits for
/// them, and throws the first error of any. For a program that is to start its
/// own ranks; `ddprun` does more (restarts, many hosts, output by rank).
///
/// Every rank is a fork of this process with the environment that torchrun
/// would give it (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, a free
/// MASTER_PORT, ...), so that `ddp::init_process_group()` joins them. With more
/// than one rank and no OMP_NUM_THREADS each computes with one thread. SIGTERM
/// has its default action. The rest is as here at the moment of the fork: what
/// `function` captures are copies, and what it changes is not seen here.
///
/// When the function returns or throws, the rank flushes its streams and ends
/// at once: no destructor of a static object and no atexit function runs, since
/// these are this process's. When one fails, the others are stopped; no rank
/// outlives this process (SIGKILL comes with its end), and none is left when
/// this function is done.
///
/// @param nprocs  unset: one for each GPU, or 1 without a GPU.
/// @throws SpawnError for the rank that failed first. c10::Error when `nprocs`
///   is below 1, no process can be made, or this process cannot be forked:
///   it has several threads (those of OpenMP, CUDA and Gloo do not survive a
///   fork, so call this before the first tensor operation), has opened a GPU,
///   or ignores SIGCHLD.
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

/// Ranks that `spawn` would wait for, to do something else meanwhile.
///
/// Thread contract: one thread at a time. The kernel ties the ranks' lives to
/// the thread that made them, so this must not end before `join`.
///
/// Example:
/// @code
///   ddp::SpawnContext ranks(train, 4);
///   while (!ranks.join(std::chrono::seconds(1))) show_progress();
/// @endcode
class SpawnContext {
 public:
  /// Starts the ranks; parameters and errors as `spawn`.
  explicit SpawnContext(const std::function<void(int local_rank)>& function,
                        std::optional<int> nprocs = std::nullopt,
                        const SpawnOptions& options = {});
  /// Ends ranks that still run, by SIGKILL.
  ~SpawnContext();
  SpawnContext(SpawnContext&&) noexcept;
  SpawnContext& operator=(SpawnContext&&) noexcept;

  /// Waits until all ranks are done, at most `timeout`. True when they are.
  /// @throws SpawnError when one has failed, once the others are stopped.
  bool join(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  /// By rank; the numbers of ranks that have ended may be in new use.
  std::vector<pid_t> pids() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddp
