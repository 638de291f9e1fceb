// The part of libnccl.so.2 that LibTorch calls.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdio>
#include <exception>
#include <thread>
#include <vector>

#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/log.h"
#include "test/fake_gpu/nccl/call.h"

namespace fake_gpu {
namespace {

struct Buffers {
  const void* send;
  void* receive;
};

ncclResult_t call(uint64_t Counts::*counter,
                  const CallShape& shape,
                  Buffers buffers,
                  ncclComm_t handle,
                  cudaStream_t stream) {
  const auto& comm = handle->communicator;
  if (comm->async_error != ncclSuccess) {
    return comm->async_error;
  }
  count(counter);
  if (shape.count == 0) {
    return ncclSuccess;
  }
  Call result;
  result.communicator = comm;
  result.shape = shape;
  result.send = static_cast<const char*>(buffers.send);
  result.receive = static_cast<char*>(buffers.receive);
  result.stream = stream_of(stream, comm->device);
  result.number = ++comm->calls;
  submit(std::move(result));
  return ncclSuccess;
}

ncclResult_t join_by_id(ncclComm_t* handle,
                        int size,
                        const ncclUniqueId& id,
                        int rank) {
  std::shared_ptr<Communicator> communicator;
  const auto result =
      join(id.internal, rank, size, current_device(), &communicator);
  if (result == ncclSuccess) {
    *handle = new ncclComm{std::move(communicator)};
    // All have opened it. Only the process that made it has it to forget, and
    // only once: not for each of its ranks that are threads.
    if (rank == 0) {
      Board::forget(id.internal);
    }
  }
  return result;
}

}  // namespace
}  // namespace fake_gpu

using fake_gpu::CollectiveKind;
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
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "an error the stand-in has no text for";
  }
}

const char* ncclGetLastError(ncclComm_t) { return "see stderr"; }

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

// LibTorch aborts a communicator of which it has forgotten the handle.
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

ncclResult_t ncclGroupStart() {
  fake_gpu::open_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  fake_gpu::close_group();
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send,
                           void* receive,
                           size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t reduction,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return fake_gpu::call(
      &Counts::all_reduces,
      {CollectiveKind::all_reduce, type, reduction, 0, count},
      {send, receive},
      comm,
      stream);
}

ncclResult_t ncclBroadcast(const void* send,
                           void* receive,
                           size_t count,
                           ncclDataType_t type,
                           int root,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return fake_gpu::call(&Counts::broadcasts,
                        {CollectiveKind::broadcast, type, ncclSum, root, count},
                        {send, receive},
                        comm,
                        stream);
}

ncclResult_t ncclBcast(void* buffer,
                       size_t count,
                       ncclDataType_t type,
                       int root,
                       ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void* send,
                        void* receive,
                        size_t count,
                        ncclDataType_t type,
                        ncclRedOp_t reduction,
                        int root,
                        ncclComm_t comm,
                        cudaStream_t stream) {
  return fake_gpu::call(&Counts::reduces,
                        {CollectiveKind::reduce, type, reduction, root, count},
                        {send, receive},
                        comm,
                        stream);
}

ncclResult_t ncclAllGather(const void* send,
                           void* receive,
                           size_t count,
                           ncclDataType_t type,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return fake_gpu::call(&Counts::all_gathers,
                        {CollectiveKind::all_gather, type, ncclSum, 0, count},
                        {send, receive},
                        comm,
                        stream);
}

ncclResult_t ncclReduceScatter(const void* send,
                               void* receive,
                               size_t count,
                               ncclDataType_t type,
                               ncclRedOp_t reduction,
                               ncclComm_t comm,
                               cudaStream_t stream) {
  return fake_gpu::call(
      &Counts::reduce_scatters,
      {CollectiveKind::reduce_scatter, type, reduction, 0, count},
      {send, receive},
      comm,
      stream);
}

ncclResult_t ncclAlltoAll(const void* send,
                          void* receive,
                          size_t count,
                          ncclDataType_t type,
                          ncclComm_t comm,
                          cudaStream_t stream) {
  return fake_gpu::call(&Counts::all_to_alls,
                        {CollectiveKind::all_to_all, type, ncclSum, 0, count},
                        {send, receive},
                        comm,
                        stream);
}

ncclResult_t ncclSend(const void* send,
                      size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  return fake_gpu::call(&Counts::sends,
                        {CollectiveKind::send, type, ncclSum, peer, count},
                        {send, nullptr},
                        comm,
                        stream);
}

ncclResult_t ncclRecv(void* receive,
                      size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  return fake_gpu::call(&Counts::receives,
                        {CollectiveKind::receive, type, ncclSum, peer, count},
                        {nullptr, receive},
                        comm,
                        stream);
}

}  // extern "C"
