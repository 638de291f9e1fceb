#pragma once

#include <memory>
#include <vector>

#include "test/fake_gpu/engine/stream.h"
#include "test/fake_gpu/nccl/communicator.h"

namespace fake_gpu {

/// A collective, send or receive of one rank, and how far it is.
struct Call {
  std::shared_ptr<Communicator> communicator;
  CallShape shape;  // for a send or receive, root is the peer
  const char* send = nullptr;
  char* receive = nullptr;
  Stream* stream = nullptr;
  int64_t number = 0;  // of the communicator's calls, from 1

  uint64_t done = 0;   // elements; bytes of a send or receive
  bool shown = false;  // this rank's part of the round
  bool started = false;
  bool stalled = false;  // on purpose
  bool finished = false;
};

/// Goes on as far as the peers allow; true when finished or aborted. Ends the
/// process, with both shapes, when two ranks call different collectives.
bool progress(Call& call);

/// Whether a peer cannot go on without it.
bool is_wanted(const Call& call);

/// For all calls of a group on one stream: side by side, those of one
/// communicator in order.
bool progress(std::vector<Call>& calls);

/// Adds a call to the open group of this thread, or queues it.
void submit(Call call);
void open_group();
void close_group();

}  // namespace fake_gpu
