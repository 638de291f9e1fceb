#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#include <string>

#include "ddp/base/gpu_checks.h"
#include "ddp/job/backends.h"
#include "ddp/job/detail/connect_on_thread.h"

namespace ddp::detail {
namespace {

/// Makes errors of NCCL and CUDA catchable. By default LibTorch's watchdog
/// sleeps for a minute after an NCCL error, holding a lock that the next
/// collective needs, and then ends the process. After a CUDA error it ends the
/// process at once by std::terminate, while the program unwinds from the same
/// error of its next CUDA call. After an error or a time-out of any group of
/// the job, its monitor ends the processes of all ranks when
/// TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC (8 minutes) have passed, also if the
/// program has gone on; it does so only if it dumps its trace.
///
/// LibTorch reads these variables in each new group. They stay set: a thread
/// that reads a variable while another sets one may crash, so they are set
/// once.
void make_errors_catchable() {
  constexpr const char* kMode = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  constexpr const char* kCleanUpOnly = "2";
  const char* mode = std::getenv(kMode);
  const bool is_default = mode == nullptr || std::string(mode) == "1";
  if (is_default) {  // 1: set by launchers
    ::setenv(kMode, kCleanUpOnly, /*overwrite=*/1);
  }
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000", /*overwrite=*/0);
  // In the other modes this is also how a time-out ends the process.
  if (is_default || std::string(mode) == kCleanUpOnly) {
    ::setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", /*overwrite=*/0);
    ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
  }
}

}  // namespace

/// Connects on a separate thread: NCCL waits for a missing rank without limit,
/// and the wait cannot be cancelled.
void connect_gpu(c10::intrusive_ptr<c10d::Backend> backend,
                 c10::Device device,
                 std::chrono::milliseconds timeout,
                 const PeerFailure& peer_failure) {
  const int rank = backend->getRank();
  const bool is_connected = connect_on_thread(
      [backend, device] {
        set_current_device(device);
        backend->eagerConnectSingleDevice(device);
      },
      peer_failure ? peer_failure : [] { return std::string(); },
      timeout,
      "rank " + std::to_string(rank) +
          ": the ranks' GPUs could not be connected");
  TORCH_CHECK(is_connected,
              "Expected NCCL to connect the GPUs of ",
              backend->getSize(),
              " ranks within ",
              static_cast<double>(timeout.count()) / 1000,
              " s, but on rank ",
              rank,
              " it has not. Has a rank ended or hung? NCCL_DEBUG=INFO shows "
              "what it waits for; NCCL_SOCKET_IFNAME names the network");
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSpec& spec) {
  const std::string problem =
      nccl_header_problem(torch::cuda::nccl::version(), NCCL_MAJOR, NCCL_MINOR);
  TORCH_CHECK(problem.empty(), problem);
  set_current_device(spec.device);
  if (!spec.guest) {
    [[maybe_unused]] static const bool once = (make_errors_catchable(), true);
  }
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = spec.timeout;
  options->group_name = spec.name;
  options->global_ranks_in_group.assign(spec.ranks.begin(), spec.ranks.end());
  const c10::intrusive_ptr<c10d::Backend> backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(
          spec.store, spec.rank, spec.size, std::move(options));
  // Connecting now reports a bad device or network during set-up instead of in
  // the first step.
  connect_gpu(backend, spec.device, spec.connect_timeout, spec.peer_failure);
  return backend;
}

int nccl_device_count() {
  return c10::cuda::device_count();
}

std::string no_nccl_device_reason() {
  try {
    c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void set_current_device(c10::Device device) {
  if (device.is_cuda()) {
    c10::cuda::set_device(device.index());
  }
}

}  // namespace ddp::detail
