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
#include "ddp/job/rendezvous.h"

namespace ddp {

/// Options of `init_process_group`; all of them are optional.
///
/// Example:
/// @code
///   ddp::init_process_group(ddp::ProcessGroupOptions()
///                               .backend("gloo")
///                               .timeout(std::chrono::minutes(5)));
/// @endcode
struct ProcessGroupOptions {
  /// "nccl" (one GPU per rank) or "gloo" (CPU). Unset: "nccl" if LibTorch sees
  /// a GPU, else "gloo". If unset and the host has GPUs that LibTorch does not
  /// see, `init_process_group` throws, unless CUDA_VISIBLE_DEVICES hides all of
  /// them or a scheduler denies the job access to them.
  TORCH_ARG(std::optional<std::string>, backend) = std::nullopt;
  /// The device of this rank. With NCCL it is a GPU, with an index that
  /// LibTorch sees; `init_process_group` throws c10::Error on every rank for
  /// any other device. With Gloo a GPU must exist. A GPU becomes the current
  /// device of this thread with both. Unset: `cuda:LOCAL_RANK` with NCCL, `cpu`
  /// with Gloo.
  TORCH_ARG(std::optional<c10::Device>, device) = std::nullopt;
  /// Time limit of one collective; milliseconds::max() for none. With Gloo,
  /// exceeding it throws c10::Error; a Work of a collective of the program
  /// throws std::runtime_error.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(30);
  /// Time limit for the arrival of all ranks, and for connecting them.
  TORCH_ARG(std::chrono::milliseconds,
            connect_timeout) = std::chrono::minutes(5);
  /// Rank and addresses; not checked. For ranks on several hosts set
  /// `host_count`: with 1, the default, Gloo and the reports of departures use
  /// the loopback interface. Unset: read from the environment.
  TORCH_ARG(std::optional<WorkerEnv>, worker_env) = std::nullopt;
  /// The store for the rendezvous of the ranks. Without `worker_env` the
  /// environment still describes the job, and for several ranks it needs
  /// MASTER_ADDR and MASTER_PORT, unless a scheduler gives them. Null: a
  /// TCPStore at this address (hosted by rank 0 or by torchrun's agent).
  TORCH_ARG(c10::intrusive_ptr<c10d::Store>, store) = nullptr;
  /// Whether the ranks are guests in a host program (an MPI program, a JVM, a
  /// server) that owns the process. The terminate handler and the action of
  /// SIGPIPE then stay as they are, so the text of an uncaught exception
  /// reaches no other rank, and a host with the default action of SIGPIPE may
  /// end without a message if a peer dies. A guest calls
  /// `destroy_process_group`, after which no thread of this library is left.
  TORCH_ARG(bool, guest) = false;
  /// The host program's all-gather of texts, in place of MASTER_ADDR and
  /// MASTER_PORT; called twice. `worker_env` then gives the rank and the world
  /// size, and its other members are filled in. Null: the address of
  /// `worker_env`, or of the environment.
  ///
  /// @code
  ///   ddp::WorkerEnv env;
  ///   env.rank = rank;
  ///   env.world_size = size;
  ///   ddp::init_process_group(
  ///       ddp::ProcessGroupOptions().guest(true).worker_env(env).text_all_gather(
  ///           all_gather_text_of_host));
  /// @endcode
  TORCH_ARG(TextAllGather, text_all_gather) = nullptr;
  /// Whether CPU ranks of one host sum gradients in shared memory, as a
  /// `SharedMemoryAllReduce` does. False, or the variable DDP_SHARED_MEMORY=0,
  /// on any rank: all ranks use Gloo.
  TORCH_ARG(bool, shared_memory) = true;
};

/// Joins the job that the environment describes and creates its process group.
/// The environment variables are RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
/// MASTER_PORT, as ddprun and torchrun set them; otherwise the variables of
/// srun or mpirun. With none of them the world has one rank, and every function
/// of this header works.
///
/// Collective: returns once all ranks have joined. A rank's GPU becomes the
/// current device of this thread.
///
/// @throws std::invalid_argument if the environment is incomplete or
///   contradicts itself; c10::Error if there is a process group already,
///   MASTER_ADDR does not resolve, the port is in use, rank 0 cannot be
///   reached, or ranks are missing after `connect_timeout` (rank 0 lists them).
///   c10::Error on every rank if the ranks chose different backends, or if one
///   rank names an unknown backend or has no GPU for NCCL.
///
/// Thread contract: one thread at a time calls this function, `new_group` and
/// `destroy_process_group`. Until this function has returned, other threads
/// call no function of this header. The getters and `store` are not collective;
/// any thread may then call them until `destroy_process_group` begins.
///
/// With Gloo, SIGPIPE is ignored from then on if it had its default action,
/// unless the rank is a guest, as in Python: the death of a peer becomes an
/// exception instead of a silent end of this process.
///
/// A process may run several jobs one after another, also at the same address.
/// Rank 0 of the next job listens on MASTER_PORT again, so release all stores
/// returned by `ddp::store()` first.
///
/// Departures: if a rank throws or its process ends while other ranks still
/// train, their training ends, too. Each of them gets a c10::Error within ten
/// seconds that names the departed rank, how it left and, if it left by an
/// exception, after how many backward passes and its text. If a host disappears
/// without closing its connections (power, network), this takes a minute. A
/// collective that all members have completed does not get this error. A failed
/// backward pass ends the group of its model alone: the members get the error
/// there, and their other groups go on.
///
/// Waits: ranks that wait for each other in different calls (other collectives
/// or sizes, groups in different orders, one more pass on one rank, one rank in
/// `destroy_process_group`) get a c10::Error within about ten seconds that
/// names the ranks and their calls. Messages (`send`, `recv`) and an all-to-all
/// with sizes of its own for each rank are not compared: if a rank gets more
/// bytes than it expects there, Gloo ends its process at once (SIGABRT), and
/// the others throw Gloo's text. Only waits of this library are detected. A
/// Work that the program itself waits for, messages, waits at the store and
/// waits of the program for its GPU end at their time-outs. A wait for a rank
/// that computes is no error, however long it lasts.
/// - CPU: the call that waits throws.
/// - NCCL: a pass only queues its collectives. The next pass throws, or
///   `destroy_process_group()` if there is none. A host thread that waits for
///   the GPU is released by aborting the blocked collectives. Results computed
///   since then are garbage: start again from a checkpoint. An error that NCCL
///   finds itself (a broken connection, a collective that took longer than
///   `timeout`) aborts the group, and the next collective throws. For this
///   purpose the first group sets TORCH_NCCL_ASYNC_ERROR_HANDLING to 2, unless
///   it is 0 or 3. With 3, LibTorch's own default, its watchdog ends the
///   process; a guest sets no variable.
/// - Mechanism: every rank keeps a TCP connection to rank 0, at a port chosen
///   by the kernel. The end of a process is seen by the closed connection. For
///   an uncaught exception a terminate handler reports its text and also writes
///   it to the launcher's error file (see record_errors.h); the previous
///   handler runs next. A rank reports a wait of some seconds to rank 0. The
///   mechanism needs one thread that wakes once a second, and adds no cost to a
///   step. Once rank 0 has left, the ranks get no further reports.
/// - A rank that fails before all ranks have joined: ddprun and torchrun end
///   the others; without a launcher they wait for `connect_timeout`.
///
/// With more than one rank, rank 0 prints one line to standard error that names
/// the backend and its device, unless DDP_QUIET=1 is set.
///
/// Source: torch.distributed.init_process_group with init_method "env://".
void init_process_group(const ProcessGroupOptions& options = {});

/// Leaves the job and closes its groups, also the groups of `new_group`, and
/// its store. Waits at most ten seconds until all ranks have called it, so that
/// rank 0 does not close the store while others use it; rank 0 warns of missing
/// ranks. Does not wait for ranks with an ended process. Does nothing without a
/// process group.
///
/// If all ranks have called it, queued GPU work completes first; a collective
/// may take up to `ProcessGroupOptions::timeout`. If a rank dies meanwhile or
/// does not come within the ten seconds, or if rank 0 has left before, the work
/// is aborted. The same happens if main() returns or the program calls exit()
/// without this call.
///
/// During stack unwinding, inside a catch handler, and if an exception has left
/// a backward pass, this rank reports an error to the other ranks instead of
/// waiting for them.
///
/// Models and groups may outlive this call. Collectives on them throw
/// c10::Error. In a forked child of the rank this call does nothing.
///
/// @throws c10::Error after leaving, if no call has reported the error before:
///   - this rank or another one waits for a collective that never completes: a
///     rank has called this function without starting all collectives of a
///     group that another rank has started,
///   - a rank has died while work was queued,
///   - NCCL has aborted a group for a broken connection or the time-out, or
///   - an exception has left a backward pass of this rank.
///   Does not throw during stack unwinding or inside a catch handler.
void destroy_process_group();

/// Returns true between `init_process_group` and `destroy_process_group`.
bool is_initialized();

/// Rank of this process in [0, world_size()); 0 without a process group.
int rank();
/// Number of ranks on all hosts; 1 without a process group.
int world_size();
/// Rank within this host; 0 without a process group, and 0 on every rank where
/// the scheduler or ddprun (--virtual-local-rank) shows each rank a single GPU.
int local_rank();
/// The device of this rank: the device of the options, else `cuda:LOCAL_RANK`
/// with NCCL and `cpu` with Gloo. Without a process group: the first GPU, or
/// the CPU.
c10::Device local_device();

/// The process group of all ranks. The object wraps the backend and tracks
/// departed ranks. Its name, collectives and options are the backend's,
/// but its C++ type is not.
///
/// Messages (`send`, `recv`) over NCCL run in one order with the group's
/// collectives, also with the all-reduces of a `DistributedDataParallel`, and
/// must be called in the same order by both ranks: a rank that sends after it
/// has started an all-reduce, to a rank that receives before its own, waits
/// until the time-out. Give messages a group of their own (`new_group`).
/// @throws c10::Error without a process group.
c10::intrusive_ptr<c10d::Backend> process_group();

/// Creates a process group of some ranks. Collective: every rank of the world
/// calls it with the same list, and all ranks make these calls in the same
/// order. The group has the backend and the time limits of the job. Over NCCL
/// it connects the members at once, with memory and threads of its own.
///
/// @param ranks  distinct ranks of the world; the position in the list is the
///   rank in the new group.
/// @returns the group, or null on a rank that is not a member. Its
///   `shutdown()`, called by all members, closes the group with its connections
///   and threads before the job ends.
/// @throws c10::Error without a process group, if the list is empty or invalid,
///   or if the members cannot connect; the other ranks then see the members as
///   departed.
///
/// Example:
/// @code
///   auto even = ddp::new_group({0, 2});
///   if (even) ddp::barrier(even);
/// @endcode
c10::intrusive_ptr<c10d::Backend> new_group(const std::vector<int>& ranks);

/// The store of the job, for key-value exchange of the program; its keys have
/// their own prefix. `get` waits for a missing key up to `connect_timeout`, up
/// to the time limit of the program's own store, or five minutes for one rank
/// without MASTER_ADDR, and then throws c10::Error.
/// @throws c10::Error without a process group.
c10::intrusive_ptr<c10d::Store> store();

}  // namespace ddp
