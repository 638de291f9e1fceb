#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddp/base/cluster/worker_env.h"
#include "ddp/job/monitored_store.h"

namespace ddp::detail {

/// Returns the key prefix of a job. It separates jobs that share a store, and
/// the restart attempts of one job.
std::string key_prefix(const WorkerEnv& env, const std::string& run_id);

/// Opens the store that `env` describes: a HashStore without a launcher, else a
/// TCPStore. Rank 0 hosts the TCPStore unless the launcher does.
///
/// @param why_in_vain  called while this rank waits for rank 0; may be null.
/// @throws c10::Error of one line if MASTER_ADDR does not resolve, if rank 0
///   cannot listen on MASTER_PORT, or if rank 0 does not answer within
///   `timeout` or `why_in_vain` gives a reason.
c10::intrusive_ptr<c10d::Store> open_store(const WorkerEnv& env,
                                           std::chrono::milliseconds timeout,
                                           const VainCheck& why_in_vain = {});

/// Returns the ranks without a key in the store.
/// @throws c10::Error if the store is gone.
std::vector<int> missing_ranks(c10d::Store& store,
                               int world_size,
                               std::string (*key_of)(int rank));

/// Publishes `mine`, waits for the other ranks and returns the texts of all
/// ranks, by rank. Uses a constant number of store requests; one of them reads
/// all texts.
///
/// @param is_last  ends the wait of all ranks: they may return this rank's text
///   only, and "" for the other ranks.
/// @throws WaitInVain in a MonitoredStore; c10::Error that lists the missing
///   ranks after `timeout`.
std::vector<std::string> exchange_texts(c10d::Store& store,
                                        int rank,
                                        int world_size,
                                        const std::string& mine,
                                        std::chrono::milliseconds timeout,
                                        bool is_last = false);

/// Announcement of a rank that joins the job.
struct Arrival {
  std::string backend;  ///< "nccl" or "gloo"
  std::string error;    ///< why this rank cannot take part, or ""
};

/// Calls `exchange_texts` for arrivals. A rank with an error ends the wait of
/// all ranks.
std::vector<Arrival> exchange_arrivals(c10d::Store& store,
                                       int rank,
                                       int world_size,
                                       const Arrival& mine,
                                       std::chrono::milliseconds timeout);

/// Pure: returns why these arrivals cannot form a job, one line, or "".
std::string arrivals_problem(const std::vector<Arrival>& arrivals);

/// Waits until every rank has called this with the same `name`, at most
/// `timeout`. Returns false on time-out or if the store is gone.
bool store_barrier(c10d::Store& store,
                   const std::string& name,
                   int world_size,
                   std::chrono::milliseconds timeout) noexcept;

}  // namespace ddp::detail
