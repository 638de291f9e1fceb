#include "test/fake_gpu/nccl/call.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <set>

#include "test/fake_gpu/engine/memory.h"
#include "test/fake_gpu/log.h"
#include "test/fake_gpu/nccl/reduction.h"
#include "test/fake_gpu/settings.h"

namespace fake_gpu {
namespace {

bool is_point_to_point(const Call& call) {
  return call.shape.kind == CollectiveKind::send ||
         call.shape.kind == CollectiveKind::receive;
}

/// Returns true for collectives in which a rank has a separate piece for each
/// rank.
bool has_piece_for_each(CollectiveKind kind) {
  return kind == CollectiveKind::reduce_scatter ||
         kind == CollectiveKind::all_to_all;
}

/// Returns the number of elements of this round.
size_t round_count(const Call& call) {
  const size_t pieces =
      has_piece_for_each(call.shape.kind) ? call.communicator->size : 1;
  return std::min<size_t>(kSlotBytes / size_of(call.shape.type) / pieces,
                          call.shape.count - call.done);
}

bool all_reached(Communicator& comm,
                 std::atomic<uint64_t> Board::Rank::*what,
                 uint64_t round) {
  for (int rank = 0; rank < comm.size; ++rank) {
    if ((comm.board.rank(rank).*what).load() < round) {
      return false;
    }
  }
  return true;
}

/// Writes this rank's part. Returns false while a rank has not read the slots
/// of the previous round.
bool show(Call& call) {
  Communicator& comm = *call.communicator;
  if (!all_reached(comm, &Board::Rank::taken, comm.round)) {
    return false;
  }
  const CallShape& shape = call.shape;
  const size_t width = size_of(shape.type);
  const size_t count = round_count(call);
  char* slot = comm.board.slot(comm.rank);
  const char* from = host_address(call.send) + call.done * width;
  if (has_piece_for_each(shape.kind)) {
    for (int rank = 0; rank < comm.size; ++rank) {
      std::memcpy(slot + rank * count * width,
                  from + rank * shape.count * width,
                  count * width);
    }
  } else if (shape.kind != CollectiveKind::broadcast ||
             shape.root == comm.rank) {
    std::memcpy(slot, from, count * width);
  }
  auto& mine = comm.board.rank(comm.rank);
  mine.shape = shape;
  mine.shown.store(++comm.round);
  call.shown = true;
  return true;
}

void check_shapes(const Call& call) {
  Communicator& comm = *call.communicator;
  for (int rank = 0; rank < comm.size; ++rank) {
    const CallShape& other = comm.board.rank(rank).shape;
    if (!(other == call.shape)) {
      fail("collectives differ between ranks: rank " +
           std::to_string(comm.rank) + " calls " + text_of(call.shape) +
           "; rank " + std::to_string(rank) + " calls " + text_of(other));
    }
  }
}

void take(Call& call) {
  Communicator& comm = *call.communicator;
  const CallShape& shape = call.shape;
  const size_t width = size_of(shape.type);
  const size_t count = round_count(call);
  const size_t bytes = count * width;
  char* base = host_address(call.receive);
  char* to = base + call.done * width;
  std::vector<const char*> from;
  for (int rank = 0; rank < comm.size; ++rank) {
    const size_t mine = has_piece_for_each(shape.kind) ? comm.rank * bytes : 0;
    from.push_back(comm.board.slot(rank) + mine);
  }
  switch (shape.kind) {
    case CollectiveKind::reduce:
      if (shape.root != comm.rank) {
        break;
      }
      [[fallthrough]];
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce_scatter:
      reduce(to, from, count, shape.type, shape.reduction);
      break;
    case CollectiveKind::broadcast:
      std::memcpy(to, from[shape.root], bytes);
      break;
    case CollectiveKind::all_gather:
    case CollectiveKind::all_to_all:
      for (int rank = 0; rank < comm.size; ++rank) {
        std::memcpy(
            base + (rank * shape.count + call.done) * width, from[rank], bytes);
      }
      break;
    case CollectiveKind::send:
    case CollectiveKind::receive:
      break;
  }
  comm.board.rank(comm.rank).taken.store(comm.round);
  call.shown = false;
  call.done += count;
}

bool progress_collective(Call& call) {
  while (call.done < call.shape.count) {
    if (!call.shown && !show(call)) {
      return false;
    }
    Communicator& comm = *call.communicator;
    if (!all_reached(comm, &Board::Rank::shown, comm.round)) {
      return false;
    }
    check_shapes(call);
    take(call);
  }
  return true;
}

bool progress_send(Call& call) {
  Communicator& comm = *call.communicator;
  const int peer = call.shape.root;
  const uint64_t total = call.shape.count * size_of(call.shape.type);
  auto& sent = comm.board.rank(comm.rank).sent[peer];
  const auto& received = comm.board.rank(peer).received[comm.rank];
  while (call.done < total && sent.load() == received.load()) {
    const auto bytes = std::min<uint64_t>(kMailBytes, total - call.done);
    std::memcpy(comm.board.mail(comm.rank, peer),
                host_address(call.send) + call.done,
                bytes);
    call.done += bytes;
    ++sent;
  }
  // The send is done when the peer has read it.
  return call.done == total && sent.load() == received.load();
}

bool progress_receive(Call& call) {
  Communicator& comm = *call.communicator;
  const int peer = call.shape.root;
  const uint64_t total = call.shape.count * size_of(call.shape.type);
  const auto& sent = comm.board.rank(peer).sent[comm.rank];
  auto& mine = comm.board.rank(comm.rank);
  auto& received = mine.received[peer];
  while (call.done < total) {
    mine.awaited[peer].store(received.load() + 1);
    if (sent.load() == received.load()) {
      return false;
    }
    const auto bytes = std::min<uint64_t>(kMailBytes, total - call.done);
    std::memcpy(host_address(call.receive) + call.done,
                comm.board.mail(peer, comm.rank),
                bytes);
    call.done += bytes;
    ++received;
  }
  return true;
}

void apply_fault(Call& call) {
  const Fault& fault = settings().fault;
  if (fault.kind == Fault::Kind::none ||
      fault.rank != call.communicator->rank || fault.call != call.number) {
    return;
  }
  const std::string who = "rank " + std::to_string(fault.rank);
  switch (fault.kind) {
    case Fault::Kind::die:
      say(who + " dies");
      ::kill(::getpid(), SIGKILL);
      break;
    case Fault::Kind::stall:
      say(who + " stalls in " + text_of(call.shape));
      call.stalled = true;
      break;
    case Fault::Kind::error:
      say(who + " has an error in " + text_of(call.shape));
      call.communicator->async_error = ncclRemoteError;
      call.stalled = true;
      break;
    case Fault::Kind::none:
    case Fault::Kind::never_join:
      break;
  }
}

}  // namespace

bool progress(Call& call) {
  if (call.finished || call.communicator->aborted) {
    return true;
  }
  if (!call.started) {
    call.started = true;
    apply_fault(call);
  }
  if (call.stalled) {
    return false;
  }
  switch (call.shape.kind) {
    case CollectiveKind::send:
      call.finished = progress_send(call);
      break;
    case CollectiveKind::receive:
      call.finished = progress_receive(call);
      break;
    default:
      call.finished = progress_collective(call);
  }
  return call.finished;
}

bool is_wanted(const Call& call) {
  Communicator& comm = *call.communicator;
  if (call.finished || comm.aborted) {
    return false;
  }
  auto& mine = comm.board.rank(comm.rank);
  if (is_point_to_point(call)) {
    const int peer = call.shape.root;
    auto& other = comm.board.rank(peer);
    return call.shape.kind == CollectiveKind::send
               ? other.awaited[comm.rank] > mine.sent[peer]
               : other.sent[comm.rank] > mine.received[peer];
  }
  for (int rank = 0; rank < comm.size; ++rank) {
    if (comm.board.rank(rank).shown > mine.shown) {
      return true;
    }
  }
  return false;
}

bool progress(std::vector<Call>& calls) {
  bool all = true;
  std::set<const Communicator*> busy;
  for (Call& call : calls) {
    const bool in_order = !is_point_to_point(call);
    if (in_order && busy.count(call.communicator.get()) > 0) {
      all = false;
    } else if (!progress(call)) {
      all = false;
      if (in_order) {
        busy.insert(call.communicator.get());
      }
    }
  }
  return all;
}

}  // namespace fake_gpu
