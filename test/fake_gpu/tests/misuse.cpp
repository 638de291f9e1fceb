// Programs with misuse that must be detected, and programs with several
// processes. The argument names the program to run.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "test/fake_gpu/tests/register_function.h"

namespace {

constexpr int kRanks = 2;
constexpr int kCalls = 4;
constexpr std::chrono::seconds kPatience{3};

int read_device_memory() {
  void* data = nullptr;
  cudaMalloc(&data, 16);
  std::puts("reading device memory");
  std::fflush(stdout);
  return *static_cast<volatile char*>(data);
}

int launch_unknown_kernel() {
  static const char kernel = 0;
  __cudaRegisterFunction(nullptr,
                         &kernel,
                         nullptr,
                         "_ZN5users7mysteryIfEEvPT_",
                         -1,
                         nullptr,
                         nullptr,
                         nullptr,
                         nullptr,
                         nullptr);
  return cudaLaunchKernel(&kernel, 1, 1, nullptr, 0, nullptr);
}

/// A valid program: work is still queued when main() returns.
int leave_work_behind() {
  void* data = nullptr;
  cudaMalloc(&data, 1 << 20);
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
  for (int i = 0; i < 100; ++i) {
    cudaMemsetAsync(data, i, 1 << 20, stream);
  }
  return 0;
}

/// Accesses memory of the second device on a stream of the first.
int touch_another_device(bool with_kernel) {
  void* data = nullptr;
  cudaSetDevice(1);
  cudaMalloc(&data, 64);
  cudaSetDevice(0);
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  if (with_kernel) {
    cudaMemsetAsync(data, 0, 64, stream);
  } else {
    char host[64] = "";
    cudaMemcpyAsync(data, host, sizeof host, cudaMemcpyDefault, stream);
  }
  cudaStreamSynchronize(stream);
  return 0;
}

int call_missing_function() {
  return cudaGraphDebugDotPrint(nullptr, nullptr, 0);
}

/// Reports a collective that does not end instead of waiting for it forever.
int finish(int rank, int call, ncclComm_t comm, cudaStream_t stream) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (cudaStreamQuery(stream) != cudaSuccess) {
    ncclResult_t error = ncclSuccess;
    ncclCommGetAsyncError(comm, &error);
    const bool late = std::chrono::steady_clock::now() > end;
    if (late || error != ncclSuccess) {
      std::printf("rank %d: call %d %s\n",
                  rank,
                  call,
                  late ? "did not finish" : ncclGetErrorString(error));
      ncclCommAbort(comm);
      return 3;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return 0;
}

enum class Way { as_usual, differ, share_device, foreign_memory, recorded };

template <typename Calls>
cudaGraphExec_t record(cudaStream_t stream, const Calls& calls) {
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  calls();
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  cudaGraphExec_t executable = nullptr;
  cudaGraphInstantiateWithFlags(&executable, graph, 0);
  cudaGraphDestroy(graph);
  return executable;
}

int run_rank(int rank, const ncclUniqueId& id, Way way) {
  if (way != Way::share_device) {
    cudaSetDevice(rank);
  }
  ncclComm_t comm = nullptr;
  const auto joined = ncclCommInitRank(&comm, kRanks, id, rank);
  if (joined != ncclSuccess) {
    std::printf("rank %d: %s\n", rank, ncclGetErrorString(joined));
    return 2;
  }
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  void* data = nullptr;
  if (way == Way::foreign_memory) {
    cudaSetDevice(1 - rank);
  }
  cudaMalloc(&data, 64);
  const size_t count = way == Way::differ ? 5 + rank : 5;
  const auto all_reduce = [&] {
    ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm, stream);
  };
  auto* graph = way == Way::recorded ? record(stream, all_reduce) : nullptr;
  for (int call = 1; call <= kCalls; ++call) {
    if (graph == nullptr) {
      all_reduce();
    } else {
      cudaGraphLaunch(graph, stream);
    }
    if (const int code = finish(rank, call, comm, stream); code != 0) {
      return code;
    }
  }
  ncclCommDestroy(comm);
  std::printf("rank %d finished all calls\n", rank);
  return 0;
}

pid_t start_rank(int rank, int pipe, Way way) {
  const pid_t pid = ::fork();
  if (pid != 0) {
    return pid;
  }
  ncclUniqueId id;
  if (rank == 0) {
    ncclGetUniqueId(&id);
    if (::write(pipe, &id, sizeof id) != sizeof id) {
      ::_exit(9);
    }
  } else if (::read(pipe, &id, sizeof id) != sizeof id) {
    ::_exit(9);
  }
  const int code = run_rank(rank, id, way);
  std::fflush(stdout);
  ::_exit(code);
}

/// Runs two processes that all-reduce. If the last one is stuck in a join by an
/// injected fault, it is killed.
int run_ranks(Way way) {
  int pipe[2];
  if (::pipe(pipe) != 0) {
    return 1;
  }
  const pid_t ranks[] = {start_rank(0, pipe[1], way),
                         start_rank(1, pipe[0], way)};
  for (int i = 0; i < kRanks; ++i) {
    int status = 0;
    const pid_t pid = ::wait(&status);
    const int rank = pid == ranks[0] ? 0 : 1;
    if (WIFSIGNALED(status)) {
      std::printf("rank %d ended by signal %d\n", rank, WTERMSIG(status));
    } else {
      std::printf("rank %d ended with code %d\n", rank, WEXITSTATUS(status));
    }
    if (std::getenv("KILL_THE_OTHER") != nullptr) {
      ::kill(ranks[1 - rank], SIGKILL);
    }
  }
  return 0;
}

}  // namespace

int main(int, char** argv) {
  const std::string what = argv[1];
  if (what == "read_device_memory") {
    return read_device_memory();
  }
  if (what == "launch_unknown_kernel") {
    return launch_unknown_kernel();
  }
  if (what == "leave_work_behind") {
    return leave_work_behind();
  }
  if (what == "call_missing_function") {
    return call_missing_function();
  }
  if (what == "memset_elsewhere" || what == "copy_elsewhere") {
    return touch_another_device(what == "memset_elsewhere");
  }
  if (what == "share_device") {
    return run_ranks(Way::share_device);
  }
  if (what == "recorded_ranks") {
    return run_ranks(Way::recorded);
  }
  if (what == "reduce_elsewhere") {
    return run_ranks(Way::foreign_memory);
  }
  return run_ranks(what == "differ" ? Way::differ : Way::as_usual);
}
