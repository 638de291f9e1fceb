#include <cuda_runtime_api.h>
#include <nccl.h>

#include <utility>

#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/cudart/error.h"
#include "test/fake_gpu/engine/captures.h"
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
  Stream* target = stream_of(stream, comm->device);
  if (report(check_enqueue(target)) != cudaSuccess) {
    return ncclUnhandledCudaError;
  }
  Call result;
  result.communicator = comm;
  result.shape = shape;
  result.send = static_cast<const char*>(buffers.send);
  result.receive = static_cast<char*>(buffers.receive);
  result.stream = target;
  submit(std::move(result));
  return ncclSuccess;
}

}  // namespace
}  // namespace fake_gpu

using fake_gpu::CollectiveKind;
using fake_gpu::Counts;

extern "C" {

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
  return fake_gpu::call(&Counts::all_reduces,
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
