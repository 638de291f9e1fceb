#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddp/base/cluster/worker_env.h"

namespace ddp {

/// Options of `init_process_group`. All of them may be left out.
///
/// Example:
/// @code
///   ddp::init_process_group(ddp::ProcessGroupOptions()
///                               .backend("gloo")
///                               .timeout(std::chrono::minutes(5)));
/// @endcode
struct ProcessGroupOptions {
  /// "nccl" (one GPU a rank) or "gloo" (CPU). Unset: "nccl" when LibTorch sees
  /// a GPU, else "gloo". A host whose GPUs LibTorch does not see is an error
  /// then, unless CUDA_VISIBLE_DEVICES hides them all, or a scheduler denies
  /// them to the job.
  TORCH_ARG(std::optional<std::string>, backend) = std::nullopt;
  /// The device of this rank. Unset: `cuda:LOCAL_RANK` with NCCL, `cpu` with
  /// Gloo.
  TORCH_ARG(std::optional<c10::Device>, device) = std::nullopt;
  /// How long one collective may take before it fails.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(30);
  /// How long to wait for all ranks to arrive, and for NCCL to connect them.
  TORCH_ARG(std::chrono::milliseconds,
            connect_timeout) = std::chrono::minutes(5);
  /// Rank and addresses. Unset: read from the environment.
  TORCH_ARG(std::optional<WorkerEnv>, worker_env) = std::nullopt;
  /// The store through which ranks find each other. Null: a TCPStore at
  /// MASTER_ADDR:MASTER_PORT (hosted by rank 0, or by torchrun's agent).
  TORCH_ARG(c10::intrusive_ptr<c10d::Store>, store) = nullptr;
};

/// Joins the job that the environment describes (RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR, MASTER_PORT, as ddprun and torchrun set them; else what srun or
/// mpirun set) and makes its process group. With none of them the world has one
/// rank, and every call of this header works.
///
/// Collective: returns once all ranks have arrived. With NCCL the rank's GPU
/// becomes the current device.
///
/// @throws std::invalid_argument when the environment is incomplete or
///   contradicts itself; c10::Error when MASTER_ADDR does not resolve, the port
///   is taken, ranks are missing after `connect_timeout` (the message lists
///   them), or the ranks chose different backends.
///
/// Call from one thread, before any other call of this header. With Gloo a
/// SIGPIPE that has its default action is ignored from then on, as in Python:
/// a peer that dies is an exception, not the silent end of this process.
///
/// A job may follow another in one process, also at the same address. Its rank
/// 0 then listens again on MASTER_PORT: let go of what `ddp::store()` gave.
///
/// When a rank leaves early. A rank that stops, returns, throws or is killed
/// while others still train ends their training, too: each of them gets a
/// c10::Error that names that rank, how it has left and after how many backward
/// passes, within ten seconds; where a host goes without closing its
/// connections (power, network), after a minute. Nobody waits for the group's
/// time-out, and an error that is not caught ends the process.
/// - On the CPU the pass that waits for the rank throws.
/// - With NCCL a pass only queues its collectives. The next one throws, or
///   `destroy_process_group()` where there is none. A host that waits for the
///   GPU is released half a second after the news: what hangs there is aborted,
///   so what was computed since holds garbage. Start again from a checkpoint.
///   An error that NCCL finds itself (a broken connection, a collective that
///   took longer than `timeout`) aborts the group, and the next collective
///   throws: TORCH_NCCL_ASYNC_ERROR_HANDLING is 2 for this process, unless it
///   is 0 or 3. With 3, LibTorch's own default, its watchdog ends the process.
/// - How it is heard of: each rank keeps a connection to rank 0, at a port that
///   the kernel chooses, and says there why it leaves: what an exception says
///   that nobody has caught, too (by std::set_terminate; the handler before
///   comes next), which also goes into the launcher's error file (see
///   record_errors.h). One thread, which sleeps; no step pays for it. Where a
///   firewall closes that port, a warning says so, and NCCL's ranks wait for
///   the time-out.
/// - Waits for ranks end by it, too: this call, `new_group` and waits at
///   `store()`. Before the ranks have met, ddprun says which of its workers
///   have ended; under another launcher a rank that ends by then is waited for
///   until `connect_timeout`.
/// - Not ended by it: sends and receives over NCCL, which have the time-out.
///
/// Source: torch.distributed.init_process_group with init_method "env://".
void init_process_group(const ProcessGroupOptions& options = {});

/// Leaves the job, closes its groups, those of `new_group` too, and its store.
/// Waits, at most ten seconds, until all ranks have come here, so that rank 0
/// does not take the store from under the others; it warns of ranks that have
/// not. Ranks whose process has ended are not waited for, nor are workers that
/// a parameter server has lost. Does nothing when there is no process group.
///
/// What is queued on the GPU ends first when all ranks have come; a collective
/// may take `ProcessGroupOptions::timeout`. Where a rank has left without its
/// part of it, or dies meanwhile, it is aborted; so it is where main() returns,
/// or the program calls exit(), without this call.
///
/// A model or a group that is kept longer does no harm, and no collective: that
/// is a c10::Error then.
///
/// @throws c10::Error, after it has left, when a rank has left early (this one,
///   too, where another has started collectives that it has not) or a gradient
///   was missing in a last backward pass on a GPU, and no call has thrown that
///   before; not while an exception is on its way, nor in a handler of one.
void destroy_process_group();

/// True between `init_process_group` and `destroy_process_group`.
bool is_initialized();

/// Rank of this process in [0, world_size()); 0 without a process group.
int rank();
/// Number of ranks on all hosts; 1 without a process group.
int world_size();
/// Rank within this host; 0 without a process group.
int local_rank();
/// The device of this rank: what the options said, else `cuda:LOCAL_RANK` with
/// NCCL and `cpu` with Gloo. Without a process group: the first GPU, or the
/// CPU.
c10::Device local_device();

/// The process group of all ranks: a proxy of the backend, which knows who has
/// left. Its name, its collectives and its options are the backend's; its type
/// is not.
/// @throws c10::Error without a process group.
c10::intrusive_ptr<c10d::Backend> process_group();

/// Makes a process group of some ranks. Collective: every rank calls it, with
/// the same list, in the same order of calls.
///
/// @param ranks  ranks of the world, each once; a rank's place in this list is
///   its rank in the new group.
/// @returns the group, or null on a rank that is not in it. Its `shutdown()`,
///   called by all its ranks, closes it before the job ends, with its
///   connections and threads.
///
/// Example:
/// @code
///   auto even = ddp::new_group({0, 2});
///   if (even) ddp::barrier(even);
/// @endcode
c10::intrusive_ptr<c10d::Backend> new_group(const std::vector<int>& ranks);

/// The store of the job, for a program's own key-value exchange. Its keys have
/// a prefix of their own. Once a rank has died, or left because of an
/// exception, a wait for a key that is not there throws c10::Error with that
/// rank's name.
/// @throws c10::Error without a process group.
c10::intrusive_ptr<c10d::Store> store();

}  // namespace ddp
