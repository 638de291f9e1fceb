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

/// One rank's side of a communicator. Queued operations share ownership, so it
/// outlives the handle.
struct Communicator {
  Communicator(const std::string& name, int rank, int size, int device)
      : rank(rank), size(size), device(device), board(name, size) {}

  const int rank;
  const int size;
  const int device;
  Board board;
  std::atomic<bool> aborted{false};
  std::atomic<ncclResult_t> async_error{ncclSuccess};
  std::atomic<int64_t> calls{0};   // calls made in total
  std::atomic<int> unfinished{0};  // queued or running calls
  uint64_t round = 0;  // of collectives; used by the engine's thread only

  /// Records the place of the last operation of a stream.
  void note(const Point& point);
  /// Blocks until all operations have run or the communicator was aborted.
  void drain();

 private:
  std::mutex mutex_;
  std::map<Stream*, uint64_t> ends_;
};

/// Waits for all ranks up to the time limit of the settings. After it, prints
/// the missing ranks and returns ncclSystemError.
ncclResult_t join(const std::string& name,
                  int rank,
                  int size,
                  int device,
                  std::shared_ptr<Communicator>* result);

}  // namespace fake_gpu

/// The object behind LibTorch's handle.
struct ncclComm {
  std::shared_ptr<fake_gpu::Communicator> communicator;
};
