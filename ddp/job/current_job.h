#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/base/cluster/worker_env.h"

// Queries of the library to the job of `ddp::init_process_group`, beside
// process_group.h.
namespace ddp::detail {

/// Tells the other ranks why this process is about to end, or why it takes no
/// further part in `group`, for their errors. Does nothing without a job.
/// Thread-safe, even while another thread calls `ddp::destroy_process_group`.
void report_fatal_error(const std::string& text,
                        const std::string& group = "") noexcept;

/// Tells all ranks that a stop is requested. Does nothing without a job.
/// Thread-safe as above.
void request_stop();

/// As `ddp::new_group`, with the backend "nccl" or "gloo" instead of the job's.
c10::intrusive_ptr<c10d::Backend> new_group(const std::vector<int>& ranks,
                                            const std::string& backend);

/// Returns a second group of the same ranks, in the same order. Collectives of
/// the two groups may run in any order. A group has one sibling for each
/// purpose. The first call connects the sibling's ranks and is collective over
/// them; later calls return the same sibling. It is closed when this rank
/// leaves the job. Returns null if `group` is no group of the job, because ddp
/// cannot create another backend of an unknown kind.
/// @param purpose  one word, the same on all ranks.
/// @param backend  "nccl", "gloo" or, for the group's own, "".
/// @throws c10::Error if the ranks cannot be connected.
c10::intrusive_ptr<c10d::Backend> sibling_group(
    const c10d::Backend& group,
    const std::string& purpose,
    const std::string& backend = "");

/// Returns whether this rank may share memory with others: false after
/// ProcessGroupOptions::shared_memory(false) or with DDP_SHARED_MEMORY=0.
bool wants_shared_memory();

/// Pure: returns the `BackendSpec::interface_hint` of a job's groups.
std::string interface_hint_of(const WorkerEnv& env);

}  // namespace ddp::detail
