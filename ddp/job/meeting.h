#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddp/base/cluster/worker_env.h"
#include "ddp/job/monitored_store.h"

namespace ddp::detail {

/// The prefix of this job's keys: it keeps apart two jobs that meet at one
/// store, and the attempts of one job.
std::string key_prefix(const WorkerEnv& env, const std::string& run_id);

/// Opens the store that `env` describes: a HashStore without a launcher, else a
/// TCPStore, hosted by rank 0 unless the launcher hosts one.
///
/// @param why_in_vain  asked while rank 0 is waited for; may be null.
/// @throws c10::Error with one line when MASTER_ADDR does not resolve, when
///   rank 0 cannot listen on MASTER_PORT, or when nobody answers in time or
///   will ever do so.
c10::intrusive_ptr<c10d::Store> open_store(const WorkerEnv& env,
                                           std::chrono::milliseconds timeout,
                                           const VainCheck& why_in_vain = {});

/// The ranks whose key is not in the store.
/// @throws c10::Error when the store is gone.
std::vector<int> missing_ranks(c10d::Store& store,
                               int world_size,
                               std::string (*key_of)(int rank));

/// Publishes `mine`, waits for the other ranks and returns the texts of all, by
/// rank. A few requests to the store, however many ranks there are, and one
/// that gets all texts.
///
/// @param is_last  the others need not wait for more ranks than this one: they
///   may get its text alone, and "" for the rest.
/// @throws WaitInVain in a MonitoredStore; c10::Error that lists the ranks that
///   are missing after `timeout`.
std::vector<std::string> exchange_texts(c10d::Store& store,
                                        int rank,
                                        int world_size,
                                        const std::string& mine,
                                        std::chrono::milliseconds timeout,
                                        bool is_last = false);

/// What one rank tells the others when it arrives.
struct Arrival {
  std::string backend;  ///< "nccl" or "gloo"
  std::string error;    ///< why this rank cannot take part; empty if it can
};

/// The same for arrivals. A rank that cannot take part is the last one waited
/// for.
std::vector<Arrival> exchange_arrivals(c10d::Store& store,
                                       int rank,
                                       int world_size,
                                       const Arrival& mine,
                                       std::chrono::milliseconds timeout);

/// Pure: one line that says why these arrivals make no job, or "" when they
/// agree.
std::string arrivals_problem(const std::vector<Arrival>& arrivals);

/// Waits until every rank has called this with the same `name`, at most
/// `timeout`. Returns false on time-out or when the store is gone.
bool store_barrier(c10d::Store& store,
                   const std::string& name,
                   int world_size,
                   std::chrono::milliseconds timeout) noexcept;

}  // namespace ddp::detail
