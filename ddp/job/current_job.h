#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/base/cluster/worker_env.h"

// What the library asks of the job of `ddp::init_process_group`, beside
// process_group.h.
namespace ddp::detail {

/// Tells the other ranks why this process is about to end, for their errors.
/// Does nothing without a job. Thread-safe, also while another thread calls
/// `ddp::destroy_process_group`; so are the next two functions.
void report_fatal_error(const std::string& text) noexcept;

/// Lets `ddp::destroy_process_group` on all ranks not wait for `rank`, whose
/// process has ended or hangs. Does nothing without a job.
void report_lost_rank(int rank);

/// Tells all ranks that a stop is requested. Does nothing without a job.
void request_stop();

/// Returns a second group of the same ranks, in the same order, whose
/// collectives are not ordered with the collectives of `group`. A group has one
/// such group for each purpose. The first call makes it, which is collective
/// over its ranks alone; it is closed when the job is left.
/// @param purpose  one word, the same on all ranks.
/// @returns null if `group` neither is a group of the job nor forwards to one:
///   other backends cannot be made again.
/// @throws c10::Error if the ranks cannot be connected.
c10::intrusive_ptr<c10d::Backend> sibling_group(const c10d::Backend& group,
                                                const std::string& purpose);

/// Returns whether this rank may share memory with others: false after
/// ProcessGroupOptions::shared_memory(false) or with DDP_SHARED_MEMORY=0.
bool wants_shared_memory();

/// Pure: the host whose route selects the network interface of a job's Gloo
/// groups (`BackendSpec::reach`); empty if all ranks are on this machine.
std::string interface_hint_of(const WorkerEnv& env);

/// As above, for the job of this process.
/// @throws c10::Error without a process group.
std::string interface_hint();

}  // namespace ddp::detail
