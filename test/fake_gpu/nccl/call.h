#pragma once

#include <memory>
#include <vector>

#include "test/fake_gpu/engine/stream.h"
#include "test/fake_gpu/nccl/communicator.h"

namespace fake_gpu {

/// A collective, send or receive of one rank, and its progress.
struct Call {
  std::shared_ptr<Communicator> communicator;
  CallShape shape;  // for a send or receive, root is the peer
  const char* send = nullptr;
  char* receive = nullptr;
  Stream* stream = nullptr;
  int64_t number = 0;  // number in the communicator, from 1

  uint64_t done = 0;   // elements; for a send or receive bytes
  bool shown = false;  // this rank's part of the round is written
  bool started = false;
  bool stalled = false;  // by an injected fault
  bool finished = false;
};

/// Proceeds as far as the peers allow. Returns true if the call has finished or
/// was aborted. Ends the process and prints both shapes if two ranks call
/// different collectives.
bool progress(Call& call);

/// Returns true if a peer waits for this call.
bool is_wanted(const Call& call);

/// Same as above, for all calls of a group on one stream. Calls of different
/// communicators proceed concurrently; calls of one communicator run in order.
bool progress(std::vector<Call>& calls);

/// Adds a call to the open group of this thread, or queues it.
void submit(Call call);
void open_group();
void close_group();

}  // namespace fake_gpu
