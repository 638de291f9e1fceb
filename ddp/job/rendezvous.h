#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddp/base/cluster/worker_env.h"

namespace ddp {

/// An all-gather of texts by the host program: takes the text of this rank and
/// returns the texts of all ranks, by rank. Collective. A text has at most
/// `kMostGatheredBytes` - 1 bytes and no byte 0. Example:
/// `ddp::mpi_text_all_gather` in ddp/mpi_group.h.
using TextAllGather =
    std::function<std::vector<std::string>(const std::string& mine)>;
inline constexpr size_t kMostGatheredBytes = 256;

}  // namespace ddp

namespace ddp::detail {

/// Opens a store at rank 0, at a port chosen by the kernel, which the ranks
/// learn by `all_gather`. Fills `env` with all but the rank and the world size.
/// Collective.
/// @throws c10::Error on every rank if rank 0 cannot listen, and as
///   `open_store`.
c10::intrusive_ptr<c10d::Store> open_store_by(
    const TextAllGather& all_gather,
    WorkerEnv& env,
    std::chrono::milliseconds timeout);

/// Opens the store that `env` describes: a HashStore without a launcher, else a
/// TCPStore. Rank 0 hosts the TCPStore unless the launcher does.
///
/// @throws c10::Error of one line if MASTER_ADDR does not resolve, if rank 0
///   cannot listen on MASTER_PORT, or if rank 0 does not answer within
///   `timeout`.
c10::intrusive_ptr<c10d::Store> open_store(const WorkerEnv& env,
                                           std::chrono::milliseconds timeout);

/// A rank and the number of ranks.
struct RankOf {
  int rank;
  int size;
};

/// Announcement of a rank that joins the job.
struct Arrival {
  std::string backend;  ///< "nccl" or "gloo"
  std::string error;    ///< why this rank cannot take part, or ""
};

/// Lets the ranks of a job meet at a store that may have served earlier jobs,
/// and attempts of this one that have failed. Rank 0 numbers the attempts. A
/// rank that waits in an attempt moves to a newer attempt. It never joins an
/// attempt of other ranks, or an attempt that it has joined before: a launcher
/// may restart its workers after an attempt that only some of them have joined.
///
/// Every rank uses a few keys, and compares its backend with rank 0's.
///
/// @returns the view of the store with the keys of this attempt only.
/// @throws c10::Error on every rank if an arrival has an error or another
///   backend, and if ranks are missing after `timeout`; rank 0 lists them.
c10::intrusive_ptr<c10d::Store> meet(
    const c10::intrusive_ptr<c10d::Store>& store,
    const RankOf& place,
    const Arrival& mine,
    std::chrono::milliseconds timeout);

}  // namespace ddp::detail
