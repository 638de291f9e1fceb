#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/job/detail/connect_on_thread.h"

namespace ddp::detail {

/// Parameters of a backend.
struct BackendSpec {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  c10::Device device = c10::Device(c10::kCPU);
  /// Time limit of one collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Time limit for connecting the ranks.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  /// Called while the ranks connect. May be null.
  PeerFailure peer_failure;
  /// Gloo listens on the network interface of the route to this host; empty if
  /// all ranks are on this machine.
  std::string interface_hint;
  std::string name;        ///< group name, for NCCL's log
  std::vector<int> ranks;  ///< world rank of each group rank
  /// The action of SIGPIPE and the environment stay as they are.
  bool guest = false;
};

/// Gives threads that are created in this scope the kernel's policy
/// SCHED_BATCH, so that they do not preempt a running thread when they wake up.
/// The policy changes neither their share of the CPU nor an immediate start on
/// an idle core.
///
/// Used for the thread that polls Gloo's sockets. A rank that writes to a
/// socket holds the lock of its connection. If there are more ranks than cores,
/// the write would let the peer's polling thread preempt the writer, and the
/// writer's own polling thread would find the lock taken and poll until the
/// writer runs again.
///
/// Does nothing if the calling thread has a policy other than the default.
/// Affects only the calling thread and threads that it creates; the destructor
/// restores the policy of the calling thread.
class BatchThreadsGuard {
 public:
  BatchThreadsGuard();
  ~BatchThreadsGuard();
  BatchThreadsGuard(const BatchThreadsGuard&) = delete;
  BatchThreadsGuard& operator=(const BatchThreadsGuard&) = delete;

 private:
  bool is_batch_ = false;
};

/// Creates a Gloo backend. It listens on GLOO_SOCKET_IFNAME if this variable is
/// set, else on the local address of the route to `spec.interface_hint`. Its
/// `abort` ends blocked collectives and closes the connections.
/// @throws c10::Error if `spec.peer_failure` gives a reason. Gloo cannot be
///   cancelled then: the thread that waits for it is abandoned and ends at
///   Gloo's time-out.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSpec& spec);

/// Returns true if a collective that this rank has started may not have
/// completed. For Gloo; always true for other backends. Thread-safe.
bool may_be_working(c10d::Backend& backend);

/// Lets the next collective of a Gloo backend meet only collectives with the
/// same hash and number; does nothing for other backends. Without tags Gloo
/// pairs the n-th collective of one rank with the n-th of another, also if the
/// calls differ. The result is then wrong, or a message that is longer than
/// expected ends the process. Ranks with different tags wait.
/// @param number  of the collective in the group of the job. Sums in shared
///   memory count, too.
void tag_next_collective(c10d::Backend& backend, size_t hash, uint64_t number);

/// Connects one GPU of this rank with one GPU of each other rank. Collective:
/// all ranks connect their devices in the same order.
/// @param peer_failure  see `BackendSpec::peer_failure`.
/// @throws c10::Error as `make_nccl_backend`.
void connect_gpu(c10::intrusive_ptr<c10d::Backend> backend,
                 c10::Device device,
                 std::chrono::milliseconds timeout,
                 const PeerFailure& peer_failure);

/// Creates an NCCL backend and connects `spec.device`. The backend is not bound
/// to this device, because bound backends refuse the other GPUs of a module on
/// several GPUs. After an error that NCCL finds, the backend is aborted and the
/// process continues: the first group sets TORCH_NCCL_ASYNC_ERROR_HANDLING=2,
/// unless the variable has another value than 1, the value set by launchers.
/// LibTorch's trace is then dumped after a time-out only with
/// TORCH_NCCL_DUMP_ON_TIMEOUT=1. A guest sets no variable: LibTorch's watchdog
/// ends the process unless the host has set the variables.
/// @throws c10::Error if this LibTorch was built without CUDA or with another
///   NCCL version than ddp, if the ranks have not connected in time, or if
///   `spec.peer_failure` gives a reason. NCCL cannot be cancelled then: the
///   thread that waits for it is abandoned.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSpec& spec);

/// Number of GPUs that NCCL could use here; 0 if LibTorch was built without
/// CUDA.
int nccl_device_count();

/// Returns LibTorch's reason why nccl_device_count() is 0.
std::string no_nccl_device_reason();

/// Makes `device` the current device if it is a GPU, for NCCL and new tensors.
void set_current_device(c10::Device device);

}  // namespace ddp::detail
