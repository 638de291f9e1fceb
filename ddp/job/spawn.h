#pragma once

#include <functional>

namespace ddp {

/// Runs `function(local_rank)` in `nprocs` processes on this host and waits for
/// them. For programs that start their own ranks; `ddprun` offers more
/// (restarts, many hosts, output by rank).
///
/// Every rank is a fork of this process with the environment that torchrun
/// would set (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, a free MASTER_PORT,
/// ...), so that `ddp::init_process_group()` connects the ranks. With more than
/// one rank and without OMP_NUM_THREADS each rank computes with one thread.
/// All other state is copied at the fork: changes that `function` makes, also
/// to its captures, are not visible in this process.
///
/// Call `spawn` before this process starts threads or uses a GPU, because
/// neither survives a fork: before the first tensor operation, backward pass,
/// process group and CUDA call (the number of GPUs included). This process must
/// not ignore SIGCHLD, and only `spawn` may wait for the ranks.
///
/// When the function returns or throws, the rank flushes its streams and ends
/// at once. Destructors of static objects and atexit functions do not run
/// there, because they belong to this process. If a rank fails, the others get
/// SIGKILL. No rank outlives the thread that calls `spawn` (the kernel sends
/// SIGKILL at its end), and no rank is left when `spawn` returns, unless the
/// kernel holds a killed rank (which waits for a device) for more than ten
/// seconds.
///
/// @throws c10::Error if a rank has failed. The text names the rank that failed
///   first: "rank 1 threw: ..." with about the first 4,000 bytes of the
///   exception's text, "rank 1 was ended by signal 11 (Segmentation fault)", or
///   "rank 1 exited with code 3". If several ranks fail at once, the text names
///   one that ended without an exception, because its end makes the others
///   throw. A rank that calls exit(0) has not failed. c10::Error, too, if
///   `function` is empty, if `nprocs` is below 1, if this process has several
///   threads, if no port of 127.0.0.1 can be reserved, or if this process
///   ignores SIGCHLD or has waited for a rank elsewhere. std::system_error if a
///   process cannot be created.
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
void spawn(const std::function<void(int local_rank)>& function, int nprocs);

}  // namespace ddp
