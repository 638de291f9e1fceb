// Communicators and errors. Together with collectives_api.cpp, the part of
// libnccl.so.2 that LibTorch calls.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdio>
#include <exception>
#include <thread>
#include <vector>

#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/log.h"
#include "test/fake_gpu/nccl/communicator.h"

namespace fake_gpu {
namespace {

ncclResult_t join_by_id(ncclComm_t* handle,
                        int size,
                        const ncclUniqueId& id,
                        int rank) {
  std::shared_ptr<Communicator> communicator;
  const auto result =
      join(id.internal, rank, size, current_device(), &communicator);
  if (result == ncclSuccess) {
    *handle = new ncclComm{std::move(communicator)};
    // All ranks have opened the board. Only the creating process forgets the
    // name, once, even if several ranks are its threads.
    if (rank == 0) {
      Board::forget(id.internal);
    }
  }
  return result;
}

}  // namespace
}  // namespace fake_gpu

using fake_gpu::count;
using fake_gpu::Counts;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "an error the stand-in has no text for";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return "see stderr";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  try {
    const std::string name = fake_gpu::Board::create();
    std::snprintf(id->internal, sizeof id->internal, "%s", name.c_str());
  } catch (const std::exception& error) {
    fake_gpu::say(error.what());
    return ncclSystemError;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm,
                              int size,
                              ncclUniqueId id,
                              int rank) {
  return fake_gpu::join_by_id(comm, size, id, rank);
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  return fake_gpu::join_by_id(comm, size, id, rank);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int size, const int* devices) {
  ncclUniqueId id;
  if (const auto result = ncclGetUniqueId(&id); result != ncclSuccess) {
    return result;
  }
  std::vector<ncclResult_t> results(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([=, &results] {
      cudaSetDevice(devices == nullptr ? rank : devices[rank]);
      results[rank] = ncclCommInitRank(&comms[rank], size, id, rank);
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  for (const auto result : results) {
    if (result != ncclSuccess) {
      return result;
    }
  }
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* size) {
  *size = comm->communicator->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->communicator->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = comm->communicator->async_error;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm != nullptr) {
    comm->communicator->drain();
  }
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  ncclCommFinalize(comm);
  delete comm;
  return ncclSuccess;
}

// LibTorch may abort a communicator after it has cleared the handle.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) {
    return ncclSuccess;
  }
  auto& communicator = *comm->communicator;
  const int unfinished = communicator.unfinished;
  for (int i = 0; i < unfinished; ++i) {
    count(&Counts::aborted_collectives);
  }
  if (unfinished > 0) {
    fake_gpu::say("rank " + std::to_string(communicator.rank) +
                  " aborts a communicator with " + std::to_string(unfinished) +
                  " unfinished calls");
  }
  communicator.aborted = true;
  delete comm;
  return ncclSuccess;
}

}  // extern "C"
