#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddp/job/monitored_store.h"

namespace ddp::detail {

/// What a backend needs to know to be made.
struct BackendSpec {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  c10::Device device = c10::Device(c10::kCPU);
  std::chrono::milliseconds timeout{0};  ///< of a collective
  /// How long the ranks may take to connect.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  /// Asked while they do. May be null.
  VainCheck in_vain;
  /// Host whose route tells which network interface Gloo listens on; empty for
  /// this machine alone.
  std::string reach;
  std::string name;        ///< of the group, for NCCL's log
  std::vector<int> ranks;  ///< of the world, by their rank in the group
};

/// Makes a Gloo backend. It listens on GLOO_SOCKET_IFNAME when that is set,
/// else on the address from which this machine reaches `spec.reach`.
/// Its `abort` ends collectives that hang, and the connections.
/// @throws c10::Error when the ranks connect in vain. Gloo cannot be told to
///   stop then: a thread that waits for it is left behind until its time-out.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSpec& spec);

/// Whether a collective that this rank has started may not have ended. Gloo
/// knows; any thread.
bool may_be_working(c10d::Backend& backend);

/// How a GPU of this rank is connected with one of each other rank.
struct GpuConnection {
  c10::intrusive_ptr<c10d::Backend> backend;
  c10::Device device;
  std::chrono::milliseconds timeout;
  VainCheck in_vain;  ///< see `BackendSpec::in_vain`
};

/// Connects the GPU. Collective: ranks connect their devices in one order.
/// @throws c10::Error as `make_nccl_backend`.
void connect_gpu(const GpuConnection& wanted);

/// Makes an NCCL backend, and connects `spec.device`. It is not bound to that
/// device: bound backends refuse the others of a module on several GPUs. After
/// an error that NCCL finds, it is aborted and the process goes on
/// (TORCH_NCCL_ASYNC_ERROR_HANDLING=2), unless that variable says something
/// else than launchers do: 1.
/// @throws c10::Error when this LibTorch was built without CUDA, and when the
///   ranks have not connected in time or do so in vain. NCCL cannot be told to
///   stop then: a thread that waits for it is left behind.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSpec& spec);

/// GPUs that NCCL could use here; 0 when LibTorch was built without CUDA.
int nccl_device_count();

/// Why nccl_device_count() is 0, in LibTorch's words.
std::string no_nccl_device_reason();

/// Makes `device` current, so that NCCL and new tensors use it.
void set_current_device(c10::Device device);

}  // namespace ddp::detail
