#pragma once

#include <nccl.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "test/fake_gpu/engine/stream.h"
#include "test/fake_gpu/nccl/board.h"

namespace fake_gpu {

/// One rank's side of a communicator. Operations that are queued share it, so
/// it outlives the handle.
struct Communicator {
  Communicator(const std::string& name, int rank, int size, int device)
      : rank(rank), size(size), device(device), board(name, size) {}

  const int rank;
  const int size;
  const int device;
  Board board;
  std::atomic<bool> aborted{false};
  std::atomic<ncclResult_t> async_error{ncclSuccess};
  std::atomic<int64_t> calls{0};   // ever made
  std::atomic<int> unfinished{0};  // queued or running
  uint64_t round = 0;              // of collectives; the engine's thread only

  /// Remembers where the last operation of a stream is queued.
  void note(const Point& point);
  /// Returns when all operations have run, or it was aborted.
  void drain();

 private:
  std::mutex mutex_;
  std::map<Stream*, uint64_t> ends_;
};

/// Waits for all ranks, as long as the settings say; then ncclSystemError, and
/// a line that names the ranks that are missing.
ncclResult_t join(const std::string& name,
                  int rank,
                  int size,
                  int device,
                  std::shared_ptr<Communicator>* result);

}  // namespace fake_gpu

/// What LibTorch's handle points to.
struct ncclComm {
  std::shared_ptr<fake_gpu::Communicator> communicator;
};
